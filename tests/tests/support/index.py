# An index of pip and a registry of npm that want credentials. Arguments: a directory with `crt` and `key`, the password, the
# token, `https` or `http`, and `usual` where its addresses name no port. It prints its port, then each request with what it
# thought of its credentials.
import base64, hashlib, http.server, io, json, ssl, sys, tarfile, threading, zipfile
where, password, token, wire, usual = sys.argv[1:6]
packed = io.BytesIO()
with zipfile.ZipFile(packed, 'w') as z:
    z.writestr('tiny.py', 'x = 1\n')
    z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n')
    z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr('tiny-1.0.dist-info/RECORD', '')
wheel = packed.getvalue()
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode='w:gz') as t:
    text = b'{"name": "tiny", "version": "1.0.0"}'
    info = tarfile.TarInfo('package/package.json'); info.size = len(text)
    t.addfile(info, io.BytesIO(text))
tarball = packed.getvalue()
basic = 'Basic ' + base64.b64encode(('ci-bot:' + password).encode()).decode()
class Index(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *args): pass
    def tell(self, status, kind, body, **more):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        for name, value in more.items(): self.send_header(name, value)
        self.end_headers()
        if self.command != 'HEAD': self.wfile.write(body)
    def part(self, kind, body):
        first = int(self.headers['Range'].removeprefix('bytes=').split('-')[0])
        self.tell(206, kind, body[first:], Content_Range='bytes %d-%d/%d' % (first, len(body) - 1, len(body)))
    def do_GET(self):
        said = self.headers.get('Authorization')
        path = self.path
        wanted = 'Bearer ' + token if path.startswith('/npm/') else basic
        sys.stdout.write(json.dumps([self.command, path, said == wanted]) + "\n"); sys.stdout.flush()
        here = '%s://ci-bot:%s@%s' % (wire, password, at)
        if said != wanted: return self.tell(401, 'text/plain', b'who?', WWW_Authenticate='Basic')
        if path == '/repo/simple/tiny/':
            page = '<a href="../../packages/tiny-1.0-py3-none-any.whl#sha256=%s">tiny-1.0-py3-none-any.whl</a>' % hashlib.sha256(wheel).hexdigest()
            page += '<a href="%s/repo/packages/tiny-0.9-py3-none-any.whl">tiny-0.9-py3-none-any.whl</a>' % here
            page += '<a href="//ci-bot:%s&#64;%s/repo/packages/tiny-0.8-py3-none-any.whl" ' % (password, at)
            page += 'data-yanked="href=\'/private/file\' <a href=\'/private/file\'>">tiny-0.8-py3-none-any.whl</a><!-- <a href="/private/file"> -->'
            if self.headers['Range']: return self.part('text/html', page.encode())
            return self.tell(200, 'text/html', page.encode(), Set_Cookie='session=%s' % password)
        if path.startswith('/repo/packages/tiny-') and self.headers['Range']: return self.part('application/octet-stream', wheel)
        if path.startswith('/repo/packages/tiny-'): return self.tell(200, 'application/octet-stream', wheel)
        if path == '/repo/simple/away/': return self.tell(302, 'text/html', b'', Location='https://evil.example/x')
        if path == '/npm/tiny':
            dist = {'tarball': '%s://%s/npm/tiny/-/tiny-1.0.0.tgz' % (wire, at), 'shasum': hashlib.sha1(tarball).hexdigest()}
            version = {'name': 'tiny', 'version': '1.0.0', 'dist': dist, 'bugs': {'url': '/private/file'}}
            older = {'name': 'tiny', 'version': '0.9.0', 'dist': {**dist, 'tarball': '/elsewhere/tiny-0.9.0.tgz'}}
            page = {'name': 'tiny', 'dist-tags': {'latest': '1.0.0'}, 'versions': {'1.0.0': version, '0.9.0': older}}
            page['readme'] = 'see "tarball": "/private/file" or <a href="/private/file">'
            page['dist'] = {'tarball': '/private/file', 'url': '//ci-bot:%s@%s/x' % (password, at)}
            return self.tell(200, 'application/json', json.dumps(page).encode())
        if path == '/npm/tiny/-/tiny-1.0.0.tgz': return self.tell(200, 'application/octet-stream', tarball)
        if path == '/repo/simple/t/parent/1/parent-1.pom':
            pom = '<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>parent</artifactId><version>1</version><packaging>pom</packaging></project>'
            return self.tell(200, 'text/xml', pom.encode())
        if path == '/private/file': return self.tell(200, 'text/plain', b'PRIVATE-FILE')
        self.tell(404, 'text/plain', b'no')
    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Index)
if wire == 'https':
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(where + '/crt', where + '/key')
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
port = server.server_address[1]
at = 'index.example' + ('' if usual == 'usual' else ':%d' % port)
print(port, flush=True)
server.serve_forever()
