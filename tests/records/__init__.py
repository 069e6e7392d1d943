"""The record table: one suite for the sync and the async face, on SQLite and on PostgreSQL."""
