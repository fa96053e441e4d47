//! Waits for the repositories of a recipe, so that a build fails at once, and names them, when one is unavailable.
//! Talks HTTP to the repositories.

pub mod architectures;
mod look;
mod signature;

pub(crate) use self::look::look;

use std::time::Duration;

use futures::future::join_all;
use kiln_records::{Code, Failure};
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use tokio::time::Instant;

use super::kiwi_config::{KiwiConfig, Plan, Repository};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);

/// The first and the longest pause between two rounds.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How long a repository may answer that it does not exist, or that access is denied. It may just be being published;
/// a wrong address stays wrong.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why a repository is not ready.
struct Trouble {
    text: String,
    /// The server works and refuses: waiting is unlikely to help.
    refused: bool,
}

/// Waits until every repository of `config` is available, for at most `timeout`; `repo_unreachable` names the others.
/// Repositories whose availability cannot be checked are not waited for.
pub async fn wait(
    config: &KiwiConfig,
    client: &Client,
    timeout: Duration,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), Failure> {
    if config.repositories.is_empty() {
        say("the recipe names no repository");
    }
    let mut pending = Vec::new();
    for repository in &config.repositories {
        match &repository.plan {
            Plan::Wait(probes) => pending.push((repository, probes)),
            Plan::Skip(why) | Plan::Unused(why) => say(&format!("not waited for: {} ({why})", repository.shown)),
        }
    }
    let start = Instant::now();
    let mut pause = PAUSE.0;
    while !pending.is_empty() {
        let left = timeout.saturating_sub(start.elapsed());
        let limit = REQUEST.min(left.max(PAUSE.0));
        let answers = join_all(
            pending
                .iter()
                .map(|(repository, probes)| probe(client, repository, probes, limit)),
        )
        .await;
        let mut troubles = Vec::new();
        let mut waiting = Vec::new();
        for (entry, answer) in pending.into_iter().zip(answers) {
            match answer {
                Ok(()) => say(&format!("ready: {}", entry.0.shown)),
                Err(trouble) => {
                    troubles.push((entry.0, trouble));
                    waiting.push(entry);
                }
            }
        }
        pending = waiting;
        if troubles.is_empty() {
            break;
        }
        let waited = start.elapsed();
        let refused = troubles.iter().any(|(_, trouble)| trouble.refused);
        if waited >= timeout || (refused && waited >= PATIENCE) {
            return Err(unreachable(&troubles, waited));
        }
        for (repository, trouble) in &troubles {
            say(&format!("waiting for {}: {}", repository.shown, trouble.text));
        }
        tokio::time::sleep(pause.min(timeout.saturating_sub(waited))).await;
        pause = (pause * 2).min(PAUSE.1);
    }
    Ok(())
}

/// Asks a repository once. `Err`: why it is not ready.
async fn ask_once(client: &Client, repository: &Repository, probes: &[Url]) -> Result<(), String> {
    let answer = probe(client, repository, probes, REQUEST).await;
    answer.map_err(|trouble| trouble.text)
}

/// The beginning of a file of a repository; `None` if it is not there, or cannot be read.
async fn beginning(client: &Client, repository: &Repository, url: &Url, most: usize) -> Option<Vec<u8>> {
    let (status, bytes) = answered(client, repository, url, most).await.ok()?;
    status.is_success().then_some(bytes)
}

/// The status with which a repository answers for a file, and the beginning of the file if it sends it.
async fn answered(
    client: &Client,
    repository: &Repository,
    url: &Url,
    most: usize,
) -> reqwest::Result<(StatusCode, Vec<u8>)> {
    let request = request(client, repository, Method::GET, url, REQUEST);
    let mut answer = request.send().await?;
    let (status, mut bytes) = (answer.status(), Vec::new());
    if !status.is_success() {
        return Ok((status, bytes));
    }
    while let Some(piece) = answer.chunk().await? {
        bytes.extend_from_slice(&piece);
        if bytes.len() >= most {
            break;
        }
    }
    Ok((status, bytes))
}

/// Requests the files, any one of which proves that the repository is available.
async fn probe(client: &Client, repository: &Repository, probes: &[Url], limit: Duration) -> Result<(), Trouble> {
    let mut last = None;
    for url in probes {
        let answer = match ask(client, repository, Method::HEAD, url, limit).await {
            // Some servers and caches support only GET.
            Ok(status) if [403, 405, 501].contains(&status.as_u16()) => {
                ask(client, repository, Method::GET, url, limit).await
            }
            answer => answer,
        };
        let trouble = match answer {
            Ok(status) if status.is_success() => return Ok(()),
            Ok(status) => {
                // Too early, too many, too slow: such refusals are temporary.
                let passing = [408, 425, 429].contains(&status.as_u16());
                Trouble {
                    text: status.to_string(),
                    refused: status.is_client_error() && !passing,
                }
            }
            Err(error) => Trouble {
                text: causes(&error),
                refused: false,
            },
        };
        let (_, file) = url.path().rsplit_once('/').unwrap_or_default();
        last = Some(Trouble {
            text: format!("{file}: {}", trouble.text),
            ..trouble
        });
    }
    Err(last.unwrap_or(Trouble {
        text: "no address to ask".to_owned(),
        refused: true,
    }))
}

async fn ask(
    client: &Client,
    repository: &Repository,
    method: Method,
    url: &Url,
    limit: Duration,
) -> reqwest::Result<StatusCode> {
    // The body is not read: the connection is dropped with it.
    Ok(request(client, repository, method, url, limit).send().await?.status())
}

/// A request with the repository's login.
fn request(client: &Client, repository: &Repository, method: Method, url: &Url, limit: Duration) -> RequestBuilder {
    let request = client.request(method, url.clone()).timeout(limit);
    match &repository.login {
        Some((user, password)) => request.basic_auth(user, Some(password)),
        None => request,
    }
}

fn unreachable(troubles: &[(&Repository, Trouble)], waited: Duration) -> Failure {
    let each: Vec<_> = troubles
        .iter()
        .map(|(repository, trouble)| format!("{} ({})", repository.shown, trouble.text))
        .collect();
    let detail = format!("not reachable after {} s: {}", waited.as_secs(), each.join("; "));
    let hint = if detail.contains("certificate") {
        "give Kiln the certificate authority that signed the server's certificate"
    } else {
        "check the addresses in the recipe, and that the network of the build reaches them"
    };
    Failure::new(Code::RepoUnreachable, detail).hint(hint)
}

/// An error and its causes, without the address, which may contain a password.
fn causes(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        let this = error.to_string();
        // The outermost error only says that there is one, and ends in the address.
        let this = this
            .split_once(" for url (")
            .map_or(this.as_str(), |(before, _)| before);
        if !text.contains(this) {
            let between = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{between}{this}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use kiln_records::{Warning, arch::Arch};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::{
        super::kiwi_config::{self, Choice},
        *,
    };

    /// Serves answers, chosen by the request's head and number, until the test ends.
    async fn serve(answer: impl Fn(&str, usize) -> u16 + Send + Sync + 'static) -> String {
        serve_text(answer, |_| "").await
    }

    /// The same, with a text in each answer that is chosen by the request's head.
    async fn serve_text(
        answer: impl Fn(&str, usize) -> u16 + Send + Sync + 'static,
        body: fn(&str) -> &'static str,
    ) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answer = Arc::new(answer);
        let number = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (answer, number) = (Arc::clone(&answer), Arc::clone(&number));
                tokio::spawn(async move {
                    let mut head = vec![0; 4096];
                    let read = socket.read(&mut head).await.unwrap();
                    let head = String::from_utf8_lossy(&head[..read]).into_owned();
                    let status = answer(&head, number.fetch_add(1, Ordering::SeqCst));
                    let body = body(&head);
                    let length = body.len();
                    let text =
                        format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
                    socket.write_all(text.as_bytes()).await.unwrap();
                });
            }
        });
        address
    }

    async fn wait_for(repositories: &str, timeout_ms: u64) -> (Result<(), Failure>, Vec<String>) {
        let recipe = tempfile::tempdir().unwrap();
        let text = format!(r#"<image schemaversion="8.0" name="x">{repositories}</image>"#);
        fs_err::write(recipe.path().join("config.xml"), text).unwrap();
        let choice = Choice {
            arch: Arch::X86_64,
            profiles: &[],
        };
        let config = kiwi_config::read(recipe.path(), choice).unwrap();
        let said = Mutex::new(Vec::new());
        let say = |line: &str| said.lock().unwrap().push(line.to_owned());
        let client = crate::fetch::http_client(None).unwrap();
        let result = wait(&config, &client, Duration::from_millis(timeout_ms), &say).await;
        (result, said.into_inner().unwrap())
    }

    fn rpm(path: &str) -> String {
        format!(r#"<repository type="rpm-md"><source path="{path}"/></repository>"#)
    }

    /// What is said of repositories for riscv64, of which the first kind has two other architectures, and the second does not say.
    async fn architectures_of(repositories: &str) -> Result<Vec<Warning>, Failure> {
        const WITH: &str = "Origin: Debian\nArchitectures: amd64 arm64\nSHA256:\n";
        const OF_RPMS: &str = r#"<repomd><data type="primary"><location href="repodata/list.xml"/></data></repomd>"#;
        const LIST: &str =
            "<metadata><package><arch>noarch</arch></package><package><arch>aarch64</arch></package></metadata>";
        let two = serve_text(
            |head, _| {
                if ["/Release", "/repodata/"].iter().any(|part| head.contains(part)) {
                    200
                } else {
                    404
                }
            },
            |head| match head {
                _ if head.contains("/repomd.xml") => OF_RPMS,
                _ if head.contains("/list.xml") => LIST,
                _ => WITH,
            },
        )
        .await;
        let silent = serve(|_, _| 200).await;
        let recipe = tempfile::tempdir().unwrap();
        let repositories = repositories.replace("TWO", &two).replace("SILENT", &silent);
        let text = format!(
            r#"<image schemaversion="8.0" name="x"><preferences><packagemanager>apt</packagemanager></preferences>
               {repositories}</image>"#
        );
        fs_err::write(recipe.path().join("config.xml"), text).unwrap();
        let config = kiwi_config::read(
            recipe.path(),
            Choice {
                arch: Arch::Riscv64,
                profiles: &[],
            },
        )
        .unwrap();
        let client = crate::fetch::http_client(None).unwrap();
        architectures::check(&config, &client, Arch::Riscv64).await
    }

    #[tokio::test]
    async fn a_release_without_the_architecture_is_told_before_the_build() {
        let deb = |name: &str| {
            format!(
                r#"<repository type="apt-deb" distribution="x" components="main"><source path="{name}/d"/></repository>"#
            )
        };
        let failure = architectures_of(&deb("TWO")).await.unwrap_err();
        assert_eq!(failure.code, Code::RepoWithoutArch);
        assert!(
            failure.detail.contains("for riscv64: ") && failure.detail.ends_with("has amd64, arm64"),
            "{failure}"
        );
        let warnings = architectures_of(&(deb("TWO") + &deb("SILENT"))).await.unwrap();
        assert!(
            warnings.len() == 1 && warnings[0].code == Code::RepoWithoutArch,
            "{warnings:?}"
        );
        assert_eq!(architectures_of(&deb("SILENT")).await.unwrap(), []);
        let failure = architectures_of(&rpm("TWO/r")).await.unwrap_err();
        assert_eq!(failure.code, Code::RepoWithoutArch);
        assert!(failure.detail.ends_with("/r has aarch64"), "{failure}");
        assert_eq!(architectures_of(&rpm("SILENT")).await.unwrap(), []);
    }

    #[tokio::test]
    async fn repositories_of_both_kinds_are_found() {
        let server = serve(
            |head, _| match head.lines().next().unwrap().trim_end_matches(" HTTP/1.1") {
                "HEAD /rpm/repodata/repomd.xml" | "HEAD /deb/dists/stable/Release" | "HEAD /flat/InRelease" => 200,
                _ => 404,
            },
        )
        .await;
        let deb = format!(
            r#"<repository type="apt-deb" distribution="stable"><source path="{server}/deb/"/></repository>
               <repository type="apt-deb"><source path="{server}/flat"/></repository>"#
        );
        let (result, said) = wait_for(&(rpm(&format!("{server}/rpm/")) + &deb), 5_000).await;
        result.unwrap();
        assert_eq!(said.len(), 3);
        assert!(said.iter().all(|line| line.starts_with("ready: ")), "{said:?}");
    }

    #[tokio::test]
    async fn a_late_repository_and_a_server_without_head_are_waited_for() {
        let server = serve(|head, number| match (number, head.starts_with("GET ")) {
            (0, _) => 503,
            (_, false) => 405,
            (_, true) => 200,
        })
        .await;
        let (result, said) = wait_for(&rpm(&server), 10_000).await;
        result.unwrap();
        assert!(said[0].starts_with("waiting for http://127.0.0.1:"), "{said:?}");
        assert!(said[0].contains("503"));
    }

    #[tokio::test]
    async fn logins_are_sent_and_never_shown() {
        // echo -n user:secret | base64
        let server = serve(|head, _| {
            if head.contains("Basic dXNlcjpzZWNyZXQ=") {
                200
            } else {
                401
            }
        })
        .await;
        let in_url = server.replace("http://", "http://user:secret@");
        let as_attributes = format!(
            r#"<repository type="rpm-md" username="user" password="secret"><source path="{server}"/></repository>"#
        );
        let (result, said) = wait_for(&(rpm(&in_url) + &as_attributes), 1_000).await;
        result.unwrap();
        let wrong = server.replace("http://", "http://user:secret2@");
        let (result, more) = wait_for(&rpm(&wrong), 100).await;
        let failure = result.unwrap_err();
        assert!(failure.detail.contains("401"));
        let shown = format!("{said:?}{more:?}{failure:?}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[tokio::test]
    async fn every_missing_repository_is_named() {
        let server = serve(|_, _| 404).await;
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let repositories = rpm(&format!("{server}/a")) + &rpm(&format!("http://{closed}/b"));
        let (result, _) = wait_for(&repositories, 300).await;
        let failure = result.unwrap_err();
        assert_eq!(failure.code, Code::RepoUnreachable);
        for part in [&format!("{server}/a"), "404", &format!("http://{closed}/b"), "refused"] {
            assert!(failure.detail.contains(part), "{part} in {failure}");
        }
        assert!(failure.hint.is_some());
    }

    #[tokio::test]
    async fn without_repositories_there_is_nothing_to_wait_for() {
        let (result, said) = wait_for("", 0).await;
        result.unwrap();
        assert_eq!(said, ["the recipe names no repository"]);
        let (result, said) = wait_for(&rpm("dir:///x"), 0).await;
        result.unwrap();
        assert!(said[0].starts_with("not waited for: dir:///x ("), "{said:?}");
    }

    #[test]
    fn a_wrong_ca_bundle_is_refused() {
        for bundle in [
            "",
            "text",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(
                crate::fetch::http_client(Some(bundle)).unwrap_err().code,
                Code::CaBundleInvalid,
                "{bundle}"
            );
        }
    }
}
