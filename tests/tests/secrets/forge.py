# A private host behind TLS: git, an index of pip, a registry of npm, and what a test asks for.
# Arguments: a directory with `crt`, `key`, `valid` (the values that are taken, a line each) and `repos`.
# It prints its port, then each request: method, path, host, and which line of `valid` its credentials were.
import base64, hashlib, http.server, io, json, os, ssl, subprocess, sys, tarfile, zipfile

where = sys.argv[1]
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
    info = tarfile.TarInfo('package/package.json')
    info.size = len(text)
    t.addfile(info, io.BytesIO(text))
tarball = packed.getvalue()


def valid():
    with open(where + '/valid') as f:
        return f.read().split()


class Forge(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def tell(self, status, kind, body, **more):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        for name, value in more.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def body(self):
        if self.headers.get('Transfer-Encoding') == 'chunked':
            whole = b''
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        size = int(self.headers.get('Content-Length') or 0)
        whole = self.rfile.read(size)
        if len(whole) < size:
            raise ValueError('it broke off')
        return whole

    def known(self):
        said = self.headers.get('Authorization', '')
        for at, value in enumerate(valid()):
            basic = 'Basic ' + base64.b64encode(b'ci:' + value.encode()).decode()
            if said in ('Bearer ' + value, basic):
                return at
        return -1

    def git(self, path, query, body):
        env = dict(os.environ, GIT_PROJECT_ROOT=where + '/repos', GIT_HTTP_EXPORT_ALL='1', PATH_INFO=path,
                   QUERY_STRING=query, REQUEST_METHOD=self.command, CONTENT_LENGTH=str(len(body)),
                   CONTENT_TYPE=self.headers.get('Content-Type', ''),
                   HTTP_CONTENT_ENCODING=self.headers.get('Content-Encoding', ''),
                   GIT_PROTOCOL=self.headers.get('Git-Protocol', ''))
        said = subprocess.run(['git', 'http-backend'], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, rest = said.partition(b'\r\n\r\n')
        fields = dict(line.split(': ', 1) for line in head.decode().split('\r\n'))
        status = int(fields.pop('Status', '200').split()[0])
        self.tell(status, fields.pop('Content-Type', 'text/plain'), rest)

    def do_GET(self):
        path, _, query = self.path.partition('?')
        known = self.known()
        try:
            body = self.body()
        except (OSError, ValueError):
            body = None
        whole = None if body is None else hashlib.sha256(body).hexdigest()
        sys.stdout.write(json.dumps([self.command, path, self.headers.get('Host'), known, whole]) + "\n"); sys.stdout.flush()
        if body is None:
            self.close_connection = True
            return
        if path.startswith('/open.git/'):
            return self.git(path.replace('/open.git/', '/repo.git/', 1), query, body)
        if path.startswith('/page/'):
            return self.tell(200, 'text/html', b'<!doctype html><title>Sign in</title>')
        if path.startswith('/moved.git/'):
            return self.tell(301, 'text/plain', b'elsewhere\n', Location='https://git.example/open.git' + path[10:])
        if path.startswith('/endless.git/'):
            return self.tell(200, 'application/x-git-upload-pack-advertisement', b'0' * (9 << 20))
        if known < 0:
            return self.tell(401, 'text/plain', b'who?\n', WWW_Authenticate='Basic')
        said = self.headers['Authorization']
        if path.startswith('/repo.git/'):
            return self.git(path, query, body)
        if path == '/simple/tiny/':
            page = '<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>'
            return self.tell(200, 'text/html', page.encode())
        if path.startswith('/tiny-1.0-'):
            return self.tell(200, 'application/octet-stream', wheel)
        if path == '/npm/tiny':
            dist = {'tarball': 'https://npm.example/npm/tiny/-/tiny-1.0.0.tgz', 'shasum': hashlib.sha1(tarball).hexdigest()}
            page = {'name': 'tiny', 'dist-tags': {'latest': '1.0.0'},
                    'versions': {'1.0.0': {'name': 'tiny', 'version': '1.0.0', 'dist': dist}}}
            return self.tell(200, 'application/json', json.dumps(page).encode())
        if path.endswith('.tgz'):
            return self.tell(200, 'application/octet-stream', tarball)
        if path == '/echo':
            return self.tell(200, 'text/plain', ('you said ' + said + '\n').encode())
        if path == '/echo-part':
            text, part = ('you said ' + said + '\n').encode(), self.headers.get('Range')
            if part is None:
                return self.tell(200, 'text/plain', text)
            first, last = part.partition('=')[2].split('-')
            return self.tell(206, 'text/plain', text[int(first):int(last) + 1], Content_Range='bytes %s-%s/%d' % (first, last, len(text)))
        if path == '/echo-reason':
            self.send_response(200, said)
            self.send_header('Content-Length', '0')
            return self.end_headers()
        if path == '/echo-header':
            return self.tell(200, 'text/plain', b'ok\n', X_Echo='<' + said + '>')
        if path == '/end' and os.path.exists(where + '/go'):
            return self.tell(200, 'text/plain', b'over\n')
        self.tell(200, 'text/plain', b'welcome\n')

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET


server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Forge)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(where + '/crt', where + '/key')
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
