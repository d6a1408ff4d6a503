// The unmodified JavaScript SDK against a server of ours.
import { CommandExitError, Sandbox } from 'e2b'

const check = (name, good) => {
  if (!good) throw new Error(name)
  console.log(name)
}

const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { who: 'js' }, envs: { GREETING: 'hi' } })
const done = await sandbox.commands.run('echo $GREETING; echo err >&2')
check('run', done.exitCode === 0 && done.stdout === 'hi\n' && done.stderr === 'err\n')
try {
  await sandbox.commands.run('exit 7', { user: 'root', cwd: '/tmp' })
  check('exit code', false)
} catch (error) {
  check('exit code', error instanceof CommandExitError && error.exitCode === 7)
}
const reader = await sandbox.commands.run('cat', { background: true, stdin: true })
await sandbox.commands.sendStdin(reader.pid, 'one\n')
await sandbox.commands.closeStdin(reader.pid)
check('stdin', (await reader.wait()).stdout === 'one\n')
let shown = ''
const pty = await sandbox.pty.create({ rows: 30, cols: 100, onData: (data) => { shown += new TextDecoder().decode(data) } })
await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
await pty.wait().catch(() => {})
check('pty', shown.includes('30 100'))
await sandbox.files.write('a/b.txt', 'hello')
check('files', (await sandbox.files.read('a/b.txt')) === 'hello' && (await sandbox.files.exists('a')))
check('list', (await sandbox.files.list('a')).map((entry) => entry.name).join() === 'b.txt')
await sandbox.files.rename('a/b.txt', 'c.txt')
await sandbox.files.remove('a')
check('rename and remove', (await sandbox.files.exists('c.txt')) && !(await sandbox.files.exists('a')))
const events = []
const watch = await sandbox.files.watchDir('/tmp', (event) => events.push(`${event.name} ${event.type}`))
await sandbox.files.write('/tmp/seen', 'x')
for (let n = 0; n < 100 && !events.includes('seen write'); n += 1) await new Promise((go) => setTimeout(go, 50))
await watch.stop()
check('watch', events.includes('seen create') && events.includes('seen write'))
const url = await sandbox.downloadUrl('c.txt', { useSignatureExpiration: 60 })
check('signed download', (await (await fetch(url)).text()) === 'hello')
const sleeper = await sandbox.commands.run('sleep 100', { background: true })
check('processes', (await sandbox.commands.list()).some((process) => process.pid === sleeper.pid))
check('kill', await sandbox.commands.kill(sleeper.pid))
const again = await Sandbox.connect(sandbox.sandboxId)
check('connect', (await again.commands.run('echo x')).stdout === 'x\n')
const found = await Sandbox.list({ query: { metadata: { who: 'js' } } }).nextItems()
check('list sandboxes', found.length === 1 && found[0].sandboxId === sandbox.sandboxId)
await Sandbox.pause(sandbox.sandboxId)
check('paused', !(await sandbox.isRunning()) && (await Sandbox.getInfo(sandbox.sandboxId)).state === 'paused')
const back = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
check('resumed', back.sandboxId === sandbox.sandboxId && (await back.files.read('c.txt')) === 'hello')
await back.setTimeout(120_000)
check('running', await back.isRunning())
check('kill the sandbox', (await back.kill()) && !(await sandbox.isRunning()))
console.log('done')
