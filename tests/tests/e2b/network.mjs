// The unmodified JavaScript SDK changes the network of a sandbox that runs. Prints one line for each check; fails at the first.
import { Sandbox } from 'e2b'

const REACH = 'for name in a b c; do curl -sf -m 5 http://$name.example/ || echo no; done'

const check = (name, good) => {
  if (!good) throw new Error(name)
  console.log(name)
}
const refused = async (call) => {
  try {
    await call()
  } catch (error) {
    return String(error)
  }
  throw new Error('it was not refused')
}

const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
const reach = async (of = sandbox) => (await of.commands.run(REACH)).stdout.trim().split('\n').join()
const names = async (of = sandbox) => ((await of.getInfo()).network?.allowOut ?? []).sort().join()

check('no network at first', (await reach()) === 'no,no,no')
await sandbox.updateNetwork({ allowOut: ['a.example', 'b.example'] })
check('widened', (await reach()) === 'hello,hello,no' && (await names()) === 'a.example,b.example')
const why = await refused(() => sandbox.updateNetwork({ allowOut: ['a.example', 'c.example'] }))
check('a name without a grant is refused', why.includes('c.example'))
check('and changes nothing', (await reach()) === 'hello,hello,no')
// By its id alone, as somebody does who holds no handle of it.
await Sandbox.updateNetwork(sandbox.sandboxId, { allowOut: ['b.example'], denyOut: ['0.0.0.0/0'] })
check('narrowed', (await reach()) === 'no,hello,no' && (await names()) === 'b.example')
await Sandbox.pause(sandbox.sandboxId)
check('a paused one keeps its network', (await refused(() => sandbox.updateNetwork({}))).includes('paused'))
const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
check('a resumed one has its last network', (await reach(resumed)) === 'no,hello,no' && (await names(resumed)) === 'b.example')
await resumed.updateNetwork({ allowInternetAccess: true })
check('cleared', (await reach(resumed)) === 'no,no,no' && (await names(resumed)) === '')
for (const [body, word] of [[{ allowOut: ['8.8.8.8'] }, 'only names'], [{ denyOut: ['a.example'] }, 'denyOut']])
  check(`refused: ${word}`, (await refused(() => resumed.updateNetwork(body))).includes(word))
await resumed.kill()
check('one that is over', (await refused(() => resumed.updateNetwork({}))).includes('not found'))
console.log('done')
