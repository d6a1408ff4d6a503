//! A registry of one image, for tests.

/// The distribution API's two GET routes, on loopback; ends with the process's test.
pub fn serve(tag: &str, digest: &str, named: Vec<(String, Vec<u8>)>) -> std::net::SocketAddr {
    use std::io::{BufRead as _, Write as _};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let named: std::collections::BTreeMap<String, Vec<u8>> = named.into_iter().collect();
    let (tag, digest) = (tag.to_owned(), format!("sha256:{digest}"));
    let answer = move |mut stream: std::net::TcpStream| {
        let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        while lines.next().and_then(Result::ok).is_some_and(|line| !line.is_empty()) {}
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let wanted = path.rsplit('/').next().unwrap_or_default();
        let wanted = if wanted == tag { digest.as_str() } else { wanted };
        let manifest = path.contains("/manifests/");
        let (status, body) = match named.get(wanted) {
            _ if path == "/v2/" => ("200 OK", Vec::new()),
            Some(body) => ("200 OK", body.clone()),
            None => ("404 Not Found", b"{\"errors\":[]}".to_vec()),
        };
        let kind = if manifest {
            "application/vnd.oci.image.manifest.v1+json"
        } else {
            "application/octet-stream"
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream);
        }
    });
    addr
}
