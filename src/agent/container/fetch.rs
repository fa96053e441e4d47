//! Fetches the toolbox of a pod whose image has none. Talks HTTP to the server and to S3, and writes one directory.

use std::{io::BufReader, path::Path};

use flate2::bufread::GzDecoder;
use kiln_inside::room::{empty, order::Order};
use kiln_records::{Code, Failure};

use crate::{channel::Channel, fetch};

/// The archive of a layer, until it is unpacked.
const ARCHIVE: &str = ".layer.tar.gz";

/// Fetches the toolbox of this order into a directory, and nothing else is in there then.
///
/// # Errors
///
/// The server's own refusal, such as `image_missing`; `toolbox_fetch` when S3 does not have what the server says, or it cannot
/// be unpacked.
pub(super) fn toolbox(order: &Order, to: &Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::io("cannot start", &error))?;
    // A node that was restarted runs this again.
    empty(to).map_err(|error| Failure::io("cannot empty the volume of the toolbox", &error))?;
    runtime.block_on(fetch_into(order, to))
}

async fn fetch_into(order: &Order, to: &Path) -> Result<(), Failure> {
    let name = order
        .toolbox
        .as_ref()
        .ok_or_else(|| Failure::new(Code::Protocol, "the order names no toolbox"))?;
    let source = Channel::new(&order.facts)?.find_toolbox(name).await?;
    let http = fetch::http_client(source.ca_bundle.as_deref())?;
    for layer in &source.layers {
        let archive = to.join(ARCHIVE);
        let found = fetch::object(&http, layer, &archive, Code::ToolboxFetch, &|_, _| ()).await?;
        if layer.sha256.as_ref() != Some(&found.sha256) {
            let detail = format!(
                "a part of the toolbox in S3 is damaged: its SHA-256 is {}",
                found.sha256
            );
            return Err(Failure::new(Code::ToolboxFetch, detail).hint("`kiln toolbox push --again` puts it there anew"));
        }
        unpack(&archive, to).map_err(|error| {
            Failure::new(Code::ToolboxFetch, format!("the toolbox cannot be unpacked: {error}"))
                .hint("the pod has 3 GiB of its node's disk for it")
        })?;
    }
    Ok(())
}

/// Unpacks an archive that has been verified, with its owners, and removes it.
fn unpack(archive: &Path, to: &Path) -> std::io::Result<()> {
    let packed = BufReader::with_capacity(1 << 20, fs_err::File::open(archive)?);
    let mut tar = tar::Archive::new(GzDecoder::new(packed));
    tar.set_preserve_permissions(true);
    tar.set_preserve_ownerships(true);
    tar.set_overwrite(false);
    tar.unpack(to)?;
    fs_err::remove_file(archive)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, Write},
        net::TcpListener,
        os::unix::fs::PermissionsExt,
    };

    use flate2::{Compression, write::GzEncoder};
    use kiln_records::{
        JobId,
        protocol::{AgentFacts, ObjectSource, ToolboxName, ToolboxSource},
    };
    use sha2::{Digest, Sha256};

    use super::*;

    fn layer(path: &str, content: &[u8], mode: u32) -> Vec<u8> {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.set_uid(nix::unistd::geteuid().as_raw().into());
        header.set_gid(nix::unistd::getegid().as_raw().into());
        tar.append_data(&mut header, path, content).unwrap();
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn source(server: &str, layers: &[Vec<u8>], digests: &[String]) -> ToolboxSource {
        let of_layer = |(number, digest): (usize, &String)| ObjectSource {
            url: format!("{server}/layer/{number}"),
            size: layers[number].len() as u64,
            md5: None,
            sha256: Some(digest.clone()),
        };
        ToolboxSource {
            layers: digests.iter().enumerate().map(of_layer).collect(),
            ca_bundle: None,
        }
    }

    /// A server that is also S3: it has these layers, and says these digests of them. Returns its address.
    fn server(layers: Vec<Vec<u8>>, digests: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let own = address.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap().unwrap();
                let _ = lines.find(|line| line.as_ref().unwrap().is_empty());
                let path = first.split(' ').nth(1).unwrap();
                let layer = path.strip_prefix("/layer/");
                let body = layer.map_or_else(
                    || {
                        assert!(path.ends_with("/toolboxes/description/tag-0"), "{path}");
                        serde_json::to_vec(&source(&own, &layers, &digests)).unwrap()
                    },
                    |number| layers[number.parse::<usize>().unwrap()].clone(),
                );
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(&body).unwrap();
            }
        });
        address
    }

    fn order(server: String) -> Order {
        Order {
            facts: AgentFacts {
                server,
                job: JobId::new(),
                token: "t".to_owned(),
                doors: Vec::new(),
                gateway: None,
                ca_bundle: None,
                proxy: None,
            },
            ids: None,
            allow: Vec::new(),
            deny: Vec::new(),
            resolvers: Vec::new(),
            disk: None,
            programs: "/kiln/programs".into(),
            filters_calls: false,
            toolbox: Some(ToolboxName {
                toolbox: "description".to_owned(),
                tag: "tag-0".to_owned(),
            }),
            hosts: Vec::new(),
        }
    }

    fn digest(bytes: &[u8]) -> String {
        hex::encode(Sha256::digest(bytes))
    }

    #[test]
    fn layers_are_unpacked_over_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("of an earlier start"), "").unwrap();
        let layers = vec![
            layer("tree/bin/sudo", b"root", 0o4755),
            layer("kiln/programs/agent", b"agent", 0o711),
        ];
        let digests = layers.iter().map(|layer| digest(layer)).collect();
        toolbox(&order(server(layers, digests)), dir.path()).unwrap();
        let sudo = dir.path().join("tree/bin/sudo");
        assert_eq!(fs_err::read(&sudo).unwrap(), b"root");
        assert_eq!(fs_err::metadata(&sudo).unwrap().permissions().mode() & 0o7777, 0o4755);
        let mut names: Vec<_> = fs_err::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["kiln", "tree"]);
    }

    #[test]
    fn nothing_of_a_damaged_layer_is_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let layers = vec![layer("tree/evil", b"evil", 0o755)];
        let failure = toolbox(&order(server(layers, vec![digest(b"other")])), dir.path()).unwrap_err();
        assert_eq!(failure.code, Code::ToolboxFetch);
        assert!(failure.detail.contains("is damaged"), "{failure}");
        assert!(!dir.path().join("tree").exists());
    }

    #[test]
    fn an_archive_does_not_leave_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("volume");
        fs_err::create_dir(&to).unwrap();
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = tar::Header::new_gnu();
        let name = b"../escaped";
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(nix::unistd::geteuid().as_raw().into());
        header.set_gid(nix::unistd::getegid().as_raw().into());
        header.set_cksum();
        tar.append(&header, std::io::empty()).unwrap();
        let layer = tar.into_inner().unwrap().finish().unwrap();
        let digests = vec![digest(&layer)];
        let _ = toolbox(&order(server(vec![layer], digests)), &to);
        assert!(!dir.path().join("escaped").exists());
    }
}
