import ctypes, os, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
loader = next(l for l in ('/lib64/ld-linux-x86-64.so.2', '/lib/ld-linux-aarch64.so.1') if os.path.exists(l))
words = ['l', '/usr/bin/env', 'sh', '-c', 'echo $0-RAN']
fd = os.open(loader, os.O_RDONLY)
os.set_inheritable(fd, True)
os.dup2(fd, 9)
os.symlink('/dev/fd/9', '/tmp/by-link')
os.symlink('/proc/thread-self', '/tmp/by-thread')
where = os.path.dirname(os.path.realpath(loader))
execve, execveat = (59, 322) if os.uname().machine == 'x86_64' else (221, 281)

def array(all):
    return (ctypes.c_char_p * (len(all) + 1))(*[one.encode() for one in all], None)

def child(name, act):
    pid = os.fork()
    if pid == 0:
        try:
            act(words + [name])
        except OSError as error:
            print(name, 'refused', error.errno, flush=True)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        print(name, 'RAN', flush=True)

def plain(path):
    return lambda args: os.execv(path, args)

def at(directory, path, flags):
    def act(args):
        libc.syscall(execveat, directory, path, array(args), array([]), flags)
        raise OSError(ctypes.get_errno(), 'execveat')
    return act

def inside(directory, path):
    def act(args):
        os.chdir(directory)
        os.execv(path, args)
    return act

def hidden(args):
    libc.prctl(4, 0, 0, 0, 0)
    os.execv(loader, args)

def another(args):
    os.setresgid(1000, 1000, 1000)
    os.setresuid(1000, 1000, 1000)
    os.execv(loader, args)

def raced(args):
    good, bad = b'/usr/bin/true'.ljust(64, b'\0'), loader.encode().ljust(64, b'\0')
    name = ctypes.create_string_buffer(good, 64)
    argv, env = array(args), array([])
    def change():
        while True:
            ctypes.memmove(name, bad, 64)
            ctypes.memmove(name, good, 64)
    threading.Thread(target=change, daemon=True).start()
    libc.syscall(execve, name, argv, env)
    os._exit(1)

for name in ['/dev/fd/9', '/proc/self/fd/9', '/proc/thread-self/fd/9', '/../proc/self/fd/9', '/proc/./self/../self/fd/9',
             '/tmp/by-link', '/tmp/by-thread/fd/9', '/proc/self/root' + loader, '/proc/thread-self/root' + loader]:
    child(name, plain(name))
child('/proc/PID/fd', lambda args: os.execv('/proc/%d/fd/9' % os.getpid(), args))
child('/proc/PPID/fd', plain('/proc/%d/fd/9' % os.getpid()))
child('/proc/PID/task/TID/fd', lambda args: os.execv('/proc/self/task/%d/fd/9' % os.getpid(), args))
child('cwd', inside(where, '/proc/self/cwd/' + os.path.basename(os.path.realpath(loader))))
child('relative', inside('/proc/self/fd', './9'))
child('relative-to-thread', inside('/proc/thread-self', 'fd/9'))
child('empty-path', at(9, b'', 0x1000))
child('relative-to-descriptor', lambda args: at(os.open('/proc/self/fd', os.O_RDONLY), b'9', 0)(args))
child('relative-to-proc', lambda args: at(os.open('/proc', os.O_RDONLY), b'self/fd/9', 0)(args))
child('not-dumpable', hidden)
child('another-user', another)
until, tries = time.monotonic() + 4, 0
while time.monotonic() < until and tries < 400:
    child('raced', raced)
    tries += 1
try:
    os.memfd_create('own')
    print('memfd-RAN')
except OSError:
    pass
os.chdir('/tmp')
for path in ['/tmp/copy', '/var/tmp/copy']:
    subprocess.run(['cp', '/usr/bin/env', path], check=False)
    os.chmod(path, 0o755)
    os.link(path, path + '-link')
    for one in [path, path + '-link']:
        child(one, plain(one))
with open('/tmp/script', 'w') as script:
    script.write('#!' + loader + ' /usr/bin/env\n')
os.chmod('/tmp/script', 0o755)
child('interpreter', plain('/tmp/script'))
child('given-interpreter', plain(sys.argv[1] + '/given'))
child('denied', plain('/usr/bin/env'))
child('allowed', lambda args: os.execv('/usr/bin/true', ['true']))
print('tried', tries > 3)
