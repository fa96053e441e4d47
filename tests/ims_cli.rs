//! The commands of `cray ims`: what each sends, what is shown of the answers, and what is said when something is wrong.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

#[path = "support/fake_server.rs"]
mod fake_server;


use fake_server::FakeServer;
use support::{Kiln, Ran};

const ID: &str = "6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11";
const KEY_ID: &str = "a1b2c3d4-0000-4000-8000-000000000001";

/// Words of a line, with `'…'` around words that hold blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn kiln_at(kiln: &Kiln, server: &FakeServer, line: &str) -> Ran {
    let mut command = kiln.command(words(line));
    command.env("KILN_SERVER", server.url());
    support::run(command)
}

fn show(ran: &Ran, kiln: &Kiln, server: &str) -> String {
    let text = format!(
        "exit code {}\n--- stdout\n{}--- stderr\n{}",
        ran.code.unwrap_or(-1),
        ran.stdout,
        ran.stderr
    );
    text.replace(server, "SERVER")
        .replace(kiln.data().to_str().unwrap(), "DATA")
}

/// Every command that `cray ims` has, and options of it, as lines of IMS's manual use them.
const COMMANDS: &str = "
recipes list
recipes create --name foo --linux-distribution sles15 --recipe-type kiwi-ng
recipes create --name foo --recipe-type kiwi-ng --linux-distribution sles15 --arch aarch64 --require-dkms True --link-type s3 --link-path s3://ims/recipes/r.tgz --link-etag abc --template-dictionary-key A,B --template-dictionary-value x,y
recipes create --name foo --recipe-type packer --linux-distribution centos7 --require-dkms False
recipes create --name foo --recipe-type kiwi-ng --linux-distribution sles15 --arch = 'aarch64'
recipes describe ID
recipes update ID --arch x86_64 --template-dictionary-key USS_VERSION --template-dictionary-value 1.1.2-1-cos-3.1
recipes update ID --link-path s3://ims/r --link-type s3 --link-etag '' --require-dkms no
recipes delete ID
recipes deleteall
images list
images create --name foo
images create --name foo --link-type s3 --link-path s3://boot-images/x/manifest.json --link-etag e --arch aarch64
images create --name foo --metadata-key name --metadata-value foo
images describe ID
images update ID --link-type s3 --link-path s3://boot-images/x/manifest.json --link-etag e
images update ID --arch arm64 --metadata-operation set --metadata-key project --metadata-value csm
images update ID --metadata-operation remove --metadata-key project
images update ID --name new
images delete ID
images deleteall
public-keys list
public-keys create --name 'my key' --public-key KEY_FILE
public-keys describe ID
public-keys delete ID
public-keys deleteall
remote-build-nodes list
remote-build-nodes create --xname x3000c1s10b1n0
remote-build-nodes describe x3000c1s10b1n0
remote-build-nodes delete x3000c1s10b1n0
remote-build-nodes deleteall
remote-build-nodes status list
remote-build-nodes status describe x3000c1s10b1n0
jobs list
jobs create --job-type create --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID
jobs create --job-type create --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID --enable-debug True --require-dkms False --build-env-size 15 --kernel-file-name vmlinuz --initrd-file-name initrd.img --kernel-parameters-file-name params
jobs create --job-type customize --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID --ssh-containers-name customize --ssh-containers-jail True
jobs create --job-type customize --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID --ssh-containers-jail False --job-mem-size 4
jobs describe ID
jobs delete ID
jobs deleteall
jobs deleteall --job-type create --age 1d --status error
jobs deleteall --status error,success --status waiting_on_user
deleted recipes list
deleted recipes describe ID
deleted recipes update ID --operation undelete
deleted recipes delete ID
deleted recipes deleteall
deleted images list
deleted images describe ID
deleted images update ID --operation undelete
deleted images delete ID
deleted images deleteall
deleted public-keys list
deleted public-keys describe ID
deleted public-keys update ID --operation undelete
deleted public-keys delete ID
deleted public-keys deleteall
version list
recipes list --format json -v --quiet
images list --format yaml -vvvv
jobs list --name img --arch aarch64 --status error --status success --job-type create --sort -created --limit 20
images list --sort name --reverse
";

#[test]
fn what_each_command_sends() {
    let kiln = Kiln::bare();
    let server = FakeServer::agreeable();
    let key = kiln.data().join("key.pub");
    fs_err::write(&key, "ssh-ed25519 AAAA me@here\n").unwrap();
    let mut table = String::new();
    for line in COMMANDS.lines().filter(|line| !line.is_empty()) {
        let full = line
            .replace("KEY_FILE", key.to_str().unwrap())
            .replace("KEY_ID", KEY_ID)
            .replace(" ID", &format!(" {ID}"));
        let ran = kiln_at(&kiln, &server, &format!("ims {full}"));
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        let asked = server.lines();
        assert!(!asked.is_empty(), "{line}");
        if !line.starts_with("version") {
            let again = kiln_at(&kiln, &server, &full);
            assert_eq!(again.code, Some(0), "{line}: {}", again.stderr);
            assert_eq!((&server.lines(), &again.stdout), (&asked, &ran.stdout), "{line}");
        }
        let asked = asked.join("\n  ").replace(ID, "ID").replace(KEY_ID, "KEY_ID");
        table.push_str(&format!("{line}\n  {asked}\n"));
    }
    insta::assert_snapshot!(table);
}
