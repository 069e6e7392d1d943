r"""A job scheduler with live status over Server-Sent Events.

    fastapi dev examples/job_scheduler/main.py

    JOB_ID=$(curl -s -X POST http://localhost:8000/api/v1/compute \
      -H "Content-Type: application/json" -d '{"duration": 30}' | jq -r '.job_id')
    curl -N http://localhost:8000/api/v1/jobs/$JOB_ID/\$stream
    curl http://localhost:8000/api/v1/compute/$JOB_ID/result

No other server is needed: without a broker the service runs its own worker and keeps its records in a SQLite file.
"""

from celery_jobs.api import BaseServiceBuilder, ServiceInfo

app = (
    BaseServiceBuilder(info=ServiceInfo(id="job-scheduler", display_name="Job Scheduler"))
    .with_health()
    .with_jobs(max_concurrency=5)  # at most five jobs run at once; the others wait their turn
    .build()
)
