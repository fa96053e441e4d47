//! What connections that ask for nothing do to others: nothing.

use std::time::Duration;

use aws_sdk_s3::config::RequestChecksumCalculation;
use kiln_s3::EmbeddedS3;
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::s3::target::{client, loopback};

#[test]
async fn half_open_connections_make_room_for_each_other_and_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let client = client(&(&server).into(), RequestChecksumCalculation::WhenRequired);
    client.create_bucket().bucket("data").send().await.unwrap();
    let address = server.endpoint().strip_prefix("http://").unwrap().to_owned();
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(TcpStream::connect(&address).await.unwrap());
        if idle.len() % 100 == 0 {
            client.list_objects_v2().bucket("data").send().await.unwrap();
        }
    }
    // The oldest are closed long before their time is up.
    for stream in &mut idle[..100] {
        let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_u8()).await;
        assert!(closed.unwrap().is_err());
    }
    client.list_buckets().send().await.unwrap();
    drop(idle);
    server.shutdown().await;
}
