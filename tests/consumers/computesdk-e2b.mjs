// @computesdk/e2b: its provider, as computesdk's users call it. Lists and deletions of templates are of a client that it does
// not have: they say nothing.
import { e2b } from "@computesdk/e2b";

import { check, done, fetched } from "./checks.mjs";

const compute = e2b({ apiKey: process.env.E2B_API_KEY });
const made = [];

async function sandbox(options) {
  const one = await compute.sandbox.create(options);
  made.push(one);
  return one;
}

async function commands(one) {
  let said = await one.runCommand('echo "$GREETING"; echo e >&2; exit 3');
  check("a command", said.stdout === "hi there\n" && said.stderr === "e\n" && said.exitCode === 3, said);
  said = await one.runCommand("sh -c 'pwd; echo $A'", { cwd: "/tmp", env: { A: "b c" } });
  check("its directory and variables", said.stdout === "/tmp\nb c\n" && said.exitCode === 0, said);
  said = await one.runCommand("python3 - <<'PY'\nprint(6 * 7)\nPY");
  check("a program of several lines", said.stdout === "42\n", said);
  said = await one.runCommand("sh -c 'sleep 2; touch /home/user/later'", { background: true });
  check("one in the background", said.exitCode === 0 && !(await one.filesystem.exists("/home/user/later")), said);
}

async function files(one) {
  const fs = one.filesystem;
  await fs.mkdir("/home/user/deep/er");
  await fs.writeFile("/home/user/deep/er/note.txt", "täglich\n");
  check("a file", (await fs.readFile("/home/user/deep/er/note.txt")) === "täglich\n");
  const names = (await fs.readdir("/home/user/deep")).map((entry) => entry.name);
  check("a list", names.join() === "er", names);
  check("it is there", await fs.exists("/home/user/deep/er/note.txt"));
  await fs.remove("/home/user/deep/er/note.txt");
  check("and gone", !(await fs.exists("/home/user/deep/er/note.txt")));
}

try {
  const one = await sandbox({ timeout: 240_000, envs: { GREETING: "hi there" }, metadata: { of: "computesdk" } });
  const id = one.sandboxId;
  check("its id", id.length > 10 && (await one.getInfo()).status === "running", id);
  await commands(one);
  await files(one);

  await one.filesystem.writeFile("/home/user/index.html", "hello\n");
  await one.runCommand("python3 -m http.server 8000 --directory /home/user", { background: true });
  const url = new URL(await one.getUrl({ port: 8000, protocol: "http" }));
  check("a port", (await fetched(url.host, "/index.html")) === "hello\n", url);

  const again = await compute.sandbox.getById(id);
  check("found by its id", (await again.filesystem.readFile("/home/user/index.html")) === "hello\n");
  const ids = (await compute.sandbox.list()).map((listed) => listed.sandboxId);
  check("in the list", ids.includes(id), ids);

  const snapshot = await compute.snapshot.create(id);
  const copy = await sandbox({ snapshotId: snapshot.id, timeout: 120_000 });
  check("a sandbox of its snapshot", (await copy.filesystem.readFile("/home/user/index.html")) === "hello\n", snapshot);
  check("is another one", copy.sandboxId !== id);
  const said = await one.runCommand("until [ -e later ]; do sleep 0.1; done", { timeout: 10_000 });
  check("what ran in the background", said.exitCode === 0, said);
} finally {
  for (const one of made) await one.destroy();
}
check("none is left", (await compute.sandbox.list()).length === 0);
done();
