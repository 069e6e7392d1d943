// The whole example; or, where the address names a job, the component alone, which goes away with `#none`.
import { createApp, h, ref } from "vue";
import App from "./App.vue";
import JobStatus from "./JobStatus.vue";

const inAddress = () => location.hash.slice(1);
const jobId = ref(inAddress());
addEventListener("hashchange", () => (jobId.value = inAddress()));

createApp({
  render() {
    if (jobId.value === "none") return null;
    return jobId.value ? h(JobStatus, { jobId: jobId.value }) : h(App);
  },
}).mount("#app");
