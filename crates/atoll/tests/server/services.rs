//! Programs that listen inside a sandbox, good and bad ones.

/// Says what it was asked: method, target, headers and body, as JSON. Counts
/// its connections, and does what some paths say.
pub const ECHO: &str = r#"
import json, socketserver, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
connections = 0
requests = []
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def setup(self):
        global connections
        connections += 1
        super().setup()
    def body(self):
        if self.headers.get('transfer-encoding') == 'chunked':
            whole = b''
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get('content-length', 0)))
    def do(self):
        body = self.body()
        requests.append(f'{self.command} {self.path}')
        if self.path.startswith('/count'):
            return self.say({'connections': connections, 'requests': len(requests), 'all': requests[-50:]})
        if self.path == '/events':
            return self.events()
        if self.path == '/cookies':
            self.send_response(200)
            self.send_header('set-cookie', 'own=1')
            self.send_header('set-cookie', 'all=1; Domain=localhost')
            self.send_header('connection', 'x-hidden')
            self.send_header('x-hidden', 'yes')
            self.send_header('x-shown', 'yes')
            self.send_header('content-length', '0')
            return self.end_headers()
        if self.path == '/204':
            self.send_response(204)
            return self.end_headers()
        self.say({'method': self.command, 'path': self.path, 'headers': [[n.lower(), v] for n, v in self.headers.items()], 'body': body.decode('latin-1')})
    def say(self, what):
        text = json.dumps(what).encode()
        self.send_response(200)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(text)
    def events(self):
        self.send_response(200)
        self.send_header('content-type', 'text/event-stream')
        self.send_header('transfer-encoding', 'chunked')
        self.end_headers()
        number = 0
        while True:
            piece = f'data: {number}\n\n'.encode()
            self.wfile.write(f'{len(piece):x}\r\n'.encode() + piece + b'\r\n')
            self.wfile.flush()
            number += 1
            # The next one only after the test has seen this one.
            while not any(r == f'GET /seen/{number}' for r in requests):
                time.sleep(0.005)
    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = do_OPTIONS = do_PATCH = do
    def log_message(self, *_):
        pass
class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
server = Server(('127.0.0.1', PORT), Handler)
print('listening')
server.serve_forever()
"#;

/// Switches protocols when asked, and echoes bytes until the end of what it is
/// sent; then says goodbye.
pub const SWITCH: &str = r#"
import socket, threading
def serve(peer):
    head = b''
    while b'\r\n\r\n' not in head:
        piece = peer.recv(65536)
        if not piece:
            return
        head += piece
    head, rest = head.split(b'\r\n\r\n', 1)
    lines = head.decode().split('\r\n')
    headers = {l.split(':', 1)[0].lower(): l.split(':', 1)[1].strip() for l in lines[1:]}
    if 'upgrade' not in headers:
        text = head
        peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n' % len(text) + text)
        return peer.close()
    peer.sendall(b'HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ' + headers['upgrade'].encode() + b'\r\nsec-websocket-accept: accepted\r\n\r\nhello')
    if rest:
        peer.sendall(rest)
    while piece := peer.recv(65536):
        peer.sendall(piece)
    peer.sendall(b'bye')
    peer.close()
server = socket.socket()
server.bind(('127.0.0.1', PORT))
server.listen(64)
print('listening')
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

/// Answers with what the path says, in the words of an enemy.
pub const LIAR: &str = r#"
import socket, threading, time, os
CASES = {
    '/garbage': b'\x00\xff\xfegarbage\r\n\r\n',
    '/http09': b'<html>no head</html>',
    '/nothing': b'',
    '/long-header': b'HTTP/1.1 200 OK\r\nx: ' + b'a' * 300000 + b'\r\ncontent-length: 0\r\n\r\n',
    '/many-headers': b'HTTP/1.1 200 OK\r\n' + b'x: a\r\n' * 1000 + b'content-length: 0\r\n\r\n',
    '/folded': b'HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n',
    '/space': b'HTTP/1.1 200 OK\r\ncontent-length : 5\r\n\r\nhello',
    '/two-lengths': b'HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!',
    '/both': b'HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n',
    '/short': b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nhello',
    '/bad-chunk': b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\nabc\r\n',
    '/cut-chunk': b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n',
    '/unasked': b'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello',
    '/informed': b'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok',
    '/two-answers': b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison',
    '/until-the-end': b'HTTP/1.1 200 OK\r\n\r\nall of it',
    '/good': b'HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood',
}
def serve(peer):
    while True:
        head = b''
        while b'\r\n\r\n' not in head:
            piece = peer.recv(65536)
            if not piece:
                return peer.close()
            head += piece
        path = head.split(b' ')[1].decode()
        if path == '/endless':
            peer.sendall(b'HTTP/1.1 200 OK\r\n')
            try:
                while True:
                    peer.sendall(b'x-more: and more\r\n' * 100)
            except OSError:
                return
        if path == '/silent':
            time.sleep(1000)
        peer.sendall(CASES[path])
        if path not in ('/good', '/two-answers', '/unasked'):
            return peer.close()
server = socket.socket()
server.bind(('127.0.0.1', PORT))
server.listen(64)
print('listening')
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

/// Keeps connections open without saying so, and closes each after one answer.
pub const IMPATIENT: &str = r#"
import socket, threading
def serve(peer):
    head = b''
    while b'\r\n\r\n' not in head:
        piece = peer.recv(65536)
        if not piece:
            return
        head += piece
    peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok')
    peer.close()
server = socket.socket()
server.bind(('127.0.0.1', PORT))
server.listen(64)
print('listening')
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

/// The program on a port.
pub fn on_port(program: &str, port: u16) -> String {
    program.replace("PORT", &port.to_string())
}
