// The whole example; or, where the address names a job, the component alone, which goes away with `#none`.
import { createElement, StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import App from "./App.jsx";
import { JobStatus } from "./JobStatus.jsx";

const inAddress = () => location.hash.slice(1);

function Page() {
  const [jobId, setJobId] = useState(inAddress());
  useEffect(() => {
    const read = () => setJobId(inAddress());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  if (jobId === "none") return null;
  return jobId ? createElement(JobStatus, { jobId }) : createElement(App);
}

createRoot(document.getElementById("app")).render(createElement(StrictMode, null, createElement(Page)));
