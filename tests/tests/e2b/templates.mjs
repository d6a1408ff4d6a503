// Templates built by the unmodified JavaScript SDK, against a server of ours. Prints one line for each check; fails at the first.
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ApiClient, ConnectionConfig, Sandbox, Template, waitForFile } from 'e2b'

const check = (name, good) => {
  if (!good) throw new Error(name)
  console.log(name)
}
const fails = async (call) => {
  try {
    await call()
  } catch (error) {
    return String(error)
  }
  throw new Error('it did not fail')
}

const place = mkdtempSync(join(tmpdir(), 'context-'))
writeFileSync(join(place, 'a.txt'), 'a')
const template = Template({ fileContextPath: place })
  .fromBaseImage()
  .setEnvs({ GREETING: 'hi there' })
  .runCmd('echo "$GREETING"; echo "$GREETING" > made')
  .copy('a.txt', '/opt/b.txt')
  .setWorkdir('/opt/js')
  .setStartCmd('touch /tmp/up; exec sleep 1000', waitForFile('/tmp/up'))
const logs = []
const built = await Template.build(template, 'js', { onBuildLogs: (entry) => logs.push(entry.message) })
check('build', built.templateId.length === 20 && built.name === 'js')
check('logs', logs.includes('hi there'))
check('exists', (await Template.exists('js')) && !(await Template.exists('none')))
const sandbox = await Sandbox.create('js', { timeoutMs: 60_000 })
const done = await sandbox.commands.run('pwd; cat ~/made /opt/b.txt; test -e /tmp/up && pgrep -x sleep > /dev/null && echo up')
check('created', done.stdout === '/opt/js\nhi there\naup\n')
await sandbox.kill()
const again = []
await Template.build(template, 'js', { onBuildLogs: (entry) => again.push(entry.message) })
check('cached', again.filter((line) => line.startsWith('CACHED ')).length === 4 && !again.includes('hi there'))
const forced = []
await Template.build(template, 'js', { skipCache: true, onBuildLogs: (entry) => forced.push(entry.message) })
check('not cached', !forced.some((line) => line.startsWith('CACHED ')) && forced.includes('hi there'))
const started = await Template.buildInBackground(Template().fromTemplate('js').runCmd('exit 3'), 'js-child')
let status
do {
  status = await Template.getBuildStatus(started)
} while (status.status === 'building' || status.status === 'waiting')
check('a step fails', status.status === 'error' && status.reason.message.includes('exit status 3') && status.reason.step === '1')
check('an unknown image', (await fails(() => Template.build(Template().fromImage('none:1'), 'no'))).includes('none:1'))
if (Template.getTags) {
  await Template.assignTags('js', ['v1'])
  check('tags', (await Template.getTags('js')).map((tag) => tag.tag).sort().join() === 'default,v1')
  await Template.removeTags('js', ['v1'])
  check('removed', (await Template.getTags('js')).length === 1)
}
const { api } = new ApiClient(new ConnectionConfig())
const path = { templateID: built.templateId, buildID: built.buildId }
const seen = await api.GET('/templates/{templateID}', { params: { path } })
check('a template with its builds', seen.data.builds.length === 3 && seen.data.builds[2].buildID === built.buildId)
check('its sandboxes are counted', seen.data.spawnCount === 1 && seen.data.buildStatus === 'ready')
const said = await api.GET('/templates/{templateID}/builds/{buildID}/logs', { params: { path, query: { level: 'info' } } })
check('the log of a build', said.data.logs.some((entry) => entry.message === 'hi there'))
check('all by the page', (await api.GET('/v2/templates', { params: { query: { limit: 1 } } })).response.headers.has('x-next-token'))
console.log('done')
