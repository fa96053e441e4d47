//! The way to S3, watched and cut: an S3 service of the test's own, reached through a forwarder that counts requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use kiln::artifacts::S3Settings;
use kiln_s3::EmbeddedS3;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::api::server::Server;

/// An S3 service behind a wire.
pub struct Wire {
    _dir: TempDir,
    s3: EmbeddedS3,
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    is_cut: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Wire {
    pub async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("kiln-test-s3-").tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let s3 = EmbeddedS3::start(dir.path(), any).await.unwrap();
        let endpoint = s3.endpoint();
        let target: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, is_cut) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let task = tokio::spawn({
            let (seen, is_cut) = (Arc::clone(&seen), Arc::clone(&is_cut));
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(forward(stream, target, Arc::clone(&seen), Arc::clone(&is_cut)));
                }
            }
        });
        Self {
            _dir: dir,
            s3,
            address,
            seen,
            is_cut,
            task,
        }
    }

    /// A Kiln at the other end, with the buckets that it expects.
    pub async fn kiln(&self) -> Server {
        self.kiln_with(&[]).await
    }

    /// The same with these settings.
    pub async fn kiln_with(&self, more: &[(&'static str, &'static str)]) -> Server {
        let settings = S3Settings::from(&self.s3);
        let endpoint = format!("http://{}", self.address);
        // It asks S3 while it starts, so this thread must not wait for it: the wire is served by it.
        let more = more.to_vec();
        let server = tokio::task::spawn_blocking(move || {
            let s3: [(&str, &str); 3] = [
                ("KILN__S3__ENDPOINT", &endpoint),
                ("KILN__S3__ACCESS_KEY", settings.access_key.as_ref().unwrap()),
                ("KILN__S3__SECRET_KEY", settings.secret_key.as_ref().unwrap().expose()),
            ];
            Server::with(&[&s3[..], &more].concat())
        });
        let server = server.await.unwrap();
        for bucket in ["ims", "boot-images"] {
            // Another Kiln may have made it already.
            let _ = server.s3().create_bucket().bucket(bucket).send().await;
        }
        server
    }

    /// From now on S3 cannot be reached, or can be again.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }

    /// The methods and addresses of requests since the last time.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut near: TcpStream,
    target: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    is_cut: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let mut far = TcpStream::connect(target).await?;
    let (mut up, mut down) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = near.read(&mut up) => {
                let length = read?;
                // A connection that is kept open is cut, too.
                if length == 0 || is_cut.load(Ordering::SeqCst) {
                    return Ok(());
                }
                let text = String::from_utf8_lossy(&up[..length]);
                let lines = text.lines().filter_map(|line| line.trim_end().strip_suffix(" HTTP/1.1"));
                seen.lock().unwrap().extend(lines.map(str::to_owned));
                far.write_all(&up[..length]).await?;
            }
            read = far.read(&mut down) => {
                let length = read?;
                if length == 0 {
                    return Ok(());
                }
                near.write_all(&down[..length]).await?;
            }
        }
    }
}
