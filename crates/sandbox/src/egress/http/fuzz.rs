//! Requests as a task may write them.

use cofferdam_hostile::fuzz;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Bytes between the two ends; a test's input is shorter.
const PIPE: usize = 64 * 1024;

/// Every request that the parser lets through, addressed anew as for the name that it asks for.
async fn readdressed(bytes: &[u8], entrance: Entrance) {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    let service = service_fn(|mut request: Request<Incoming>| async move {
        if let Some((host, port)) = target(&request, entrance)
            && let Some(name) = Name::parse(&host)
            && address(&mut request, &name, port, None).is_some()
        {
            let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
            assert_eq!(hosts.len(), 1, "a second host would be another server's");
            assert!(HOP_BY_HOP.iter().all(|name| !request.headers().contains_key(name)));
        }
        Ok::<_, Infallible>(say(StatusCode::OK, ""))
    });
    let served =
        server::Builder::new().max_buf_size(PIPE).serve_connection(TokioIo::new(theirs), service);
    let (mut answers, mut requests) = tokio::io::split(ours);
    let asked = async {
        // It may end before it has read everything.
        let _ = requests.write_all(bytes).await;
        let _ = requests.shutdown().await;
    };
    let heard = async {
        let mut said = Vec::new();
        let _ = answers.read_to_end(&mut said).await;
    };
    // An error is an answer; the assertions above are the test.
    let _ = tokio::join!(served, asked, heard);
}

#[test]
fn fuzz_a_request_is_addressed_anew_or_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    fuzz!("http", |bytes: &[u8]| {
        for entrance in [Entrance::Proxy, Entrance::Transparent] {
            runtime.block_on(readdressed(bytes, entrance));
        }
    });
}
