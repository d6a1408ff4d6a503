// What the JavaScript programs beside this file share: a check that holds or ends them, and requests to a port of a sandbox.
import http from "node:http";

export function check(name, good, said) {
  if (!good) throw new Error(`${name}: ${JSON.stringify(said)}`.slice(0, 400));
  console.log(name);
}

// fetch() sets the Host itself; the one address of all sandboxes is told it, as by a proxy.
function asked(host, path) {
  const address = new URL(process.env.E2B_SANDBOX_URL);
  const options = { hostname: address.hostname, port: address.port, path, headers: { Host: host } };
  return new Promise((resolve, reject) => {
    const request = http.get(options, (answer) => {
      let text = "";
      answer.on("data", (part) => (text += part)).on("end", () => resolve({ status: answer.statusCode, text }));
    });
    request.on("error", reject).setTimeout(10_000, () => request.destroy(new Error("no answer")));
  });
}

// What a service inside answers, once it does.
export async function fetched(host, path, seconds = 20) {
  const until = Date.now() + seconds * 1000;
  for (;;) {
    const { status, text } = await asked(host, path);
    if (status === 200 || Date.now() > until) return text;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

export function done() {
  console.log("done");
  process.exit(0);
}
