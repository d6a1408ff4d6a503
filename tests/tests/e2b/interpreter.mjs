// The unmodified code interpreter SDK for JavaScript against a server of ours.
import { Sandbox } from '@e2b/code-interpreter'

const check = (name, good) => {
  if (!good) throw new Error(name)
  console.log(name)
}

const sandbox = await Sandbox.create({ timeoutMs: 120_000 })
const out = []
const done = await sandbox.runCode('x = 1\nprint("one")\nx + 1', { onStdout: (message) => out.push(message.line) })
check('result', done.text === '2' && done.results[0].isMainResult)
check('stdout', out.join('') === 'one\n' && done.logs.stdout.join('') === 'one\n')
check('state', (await sandbox.runCode('x')).text === '1')
const failed = await sandbox.runCode('1/0')
check('error', failed.error.name === 'ZeroDivisionError' && failed.error.traceback.includes('ZeroDivisionError'))
const plot = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.show()')
check('png', Buffer.from(plot.results[0].png, 'base64').subarray(1, 4).toString() === 'PNG')
check('chart', plot.results[0].chart.type === 'line')
const bash = await sandbox.runCode('echo $((6 * 7))', { language: 'bash' })
check('bash', bash.logs.stdout.join('') === '42\n')
const context = await sandbox.createCodeContext({ cwd: '/tmp' })
check('context', (await sandbox.runCode('import os; os.getcwd()', { context })).text === '/tmp')
check('apart', (await sandbox.runCode('x', { context })).error.name === 'NameError')
check('contexts', (await sandbox.listCodeContexts()).some((one) => one.id === context.id))
await sandbox.restartCodeContext(context)
await sandbox.removeCodeContext(context)
check('removed', !(await sandbox.listCodeContexts()).some((one) => one.id === context.id))
try {
  await sandbox.runCode('while True: pass', { timeoutMs: 1_000 })
  check('timeout', false)
} catch (error) {
  check('timeout', error.name === 'TimeoutError')
}
check('interrupted', (await sandbox.runCode('x')).text === '1')
await sandbox.kill()
console.log('done')
