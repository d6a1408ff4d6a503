// @mastra/e2b: its sandbox by the interface of Mastra's workspaces, with the template `base`: its own default is built with apt and
// the network. Commands, processes, files, a stop that pauses, a second object that finds the first one's sandbox, and code mode.
import { createCodeMode, createTool } from "@mastra/core/tools";
import { Workspace } from "@mastra/core/workspace";
import { E2BCodeModeTransport, E2BSandbox } from "@mastra/e2b";
import { Sandbox } from "e2b";
import { z } from "zod";

import { check, done, fetched } from "./checks.mjs";

const id = `mastra-${process.pid}`;
const options = { id, template: "base", timeout: 240_000, env: { GREETING: "hi there" } };
const sandbox = new E2BSandbox(options);

async function commands() {
  let said = await sandbox.executeCommand("sh", ["-c", 'echo "$GREETING"; id -un; echo e >&2']);
  check("a command", said.stdout === "hi there\nuser\n" && said.stderr === "e\n" && said.success, said);
  // Its version says what a failed command said twice: as it came, and from the error.
  said = await sandbox.executeCommand("sh", ["-c", "echo out; exit 3"]);
  check("one that fails", said.stdout.startsWith("out\n") && said.exitCode === 3 && !said.success, said);
  said = await sandbox.executeCommand("echo", ["it's", "$HOME"], { cwd: "/tmp", env: { A: "b" } });
  check("its words as they are", said.success && said.stdout === "it's $HOME\n", said);
  await sandbox.writeFiles([{ path: "/home/user/note.txt", content: "täglich\n" }]);
  said = await sandbox.executeCommand("cat", ["/home/user/note.txt"]);
  check("a file", said.stdout === "täglich\n", said);
}

async function processes() {
  const cat = await sandbox.processes.spawn("while read line; do echo \"got $line\"; done");
  await cat.sendStdin("one\n");
  await until(() => cat.stdout === "got one\n", "a process answers", () => cat.stdout);
  const listed = await sandbox.processes.list();
  check("it is listed", listed.some((one) => one.pid === cat.pid), listed);
  check("it is ended", await sandbox.processes.kill(cat.pid));
  const failed = await (await sandbox.processes.spawn("echo out; exit 4")).wait();
  check("another one ends by itself", failed.exitCode === 4 && failed.stdout.startsWith("out\n"), failed);
}

async function until(holds, name, said) {
  const end = Date.now() + 10_000;
  while (!holds() && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 50));
  check(name, holds(), said());
}

async function port() {
  await sandbox.processes.spawn("python3 -m http.server 8000 --directory /home/user");
  const url = new URL(await sandbox.networking.getPortUrl(8000));
  check("a port", (await fetched(url.host, "/note.txt")) === "täglich\n", url);
}

// A program that runs inside, and calls a tool that stays outside.
async function codeMode() {
  const add = createTool({
    id: "add",
    description: "adds",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async (input) => ({ sum: input.a + input.b }),
  });
  const { tool } = createCodeMode({ tools: { add }, sandbox }, new E2BCodeModeTransport());
  const code = "const { sum }: { sum: number } = await external_add({ a: 40, b: 2 }); console.log('log'); return sum;";
  // What an agent gives a tool beside its input: here, an observer that looks away.
  const said = await tool.execute({ code }, { observe: { span: (_, run) => run(), log: () => {} } });
  check("code mode", said.success && said.result === 42 && said.logs.join() === "log", said);
}

try {
  const workspace = new Workspace({ sandbox });
  await workspace.init();
  check("it runs", sandbox.status === "running");
  await commands();
  await processes();
  await port();
  if ((await sandbox.executeCommand("node", ["--version"])).success) await codeMode();

  const first = sandbox.e2b.sandboxId;
  // As a workspace calls them: by what keeps the status beside them.
  await sandbox._stop();
  const { state } = await Sandbox.getInfo(first);
  check("a stop pauses it", state === "paused", state);
  await sandbox._start();
  check("and goes on as itself", sandbox.e2b.sandboxId === first);
  let said = await sandbox.executeCommand("cat", ["/home/user/note.txt"]);
  check("with its files", said.stdout === "täglich\n", said);
  const other = new E2BSandbox(options);
  await other.start();
  check("another object finds it", other.e2b.sandboxId === first);
  said = await other.executeCommand("sh", ["-c", "echo $((6 * 7))"]);
  check("and uses it", said.stdout === "42\n", said);
} finally {
  await sandbox.destroy();
}
done();
