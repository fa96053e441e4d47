//! Checks the section `[metrics]`. Reads the file of the token; no network.

use super::{Config, Problem};

const SECTION: &str = "metrics";

/// The shortest token that counts as one.
const SHORTEST: usize = 16;

impl Config {
    pub(super) fn check_metrics(&self, problems: &mut Vec<Problem>) {
        let (metrics, server) = (&self.metrics, &self.server);
        if metrics.listen.0.is_empty() {
            if self.is_set(SECTION, "token_file") {
                let problem = self.problem(SECTION, "token_file", "`listen` is not set, so the token has no effect");
                problems.push(problem.hint(
                    "set `listen`; on the addresses of [server], make a token with `kiln tokens create --role read`",
                ));
            }
            return;
        }
        let others = [&server.listen.0[..], &self.trusted_listener.listen.0[..]].concat();
        let mut fixed: Vec<_> = metrics.listen.0.iter().filter(|address| address.port() != 0).collect();
        fixed.sort();
        if fixed.windows(2).any(|pair| pair[0] == pair[1]) || fixed.iter().any(|address| others.contains(address)) {
            let problem = self.problem(
                SECTION,
                "listen",
                "an address is listed twice, perhaps in another section",
            );
            problems.push(problem.hint("remove one"));
        }
        if let Some(path) = &metrics.token_file {
            match fs_err::read_to_string(path) {
                Err(error) => problems.push(
                    self.problem(SECTION, "token_file", error)
                        .hint("make it readable for the user that runs Kiln"),
                ),
                Ok(text) if !is_token(text.trim()) => {
                    let what =
                        format_args!("{} has no token of at least {SHORTEST} characters", path.display()).to_string();
                    problems.push(
                        self.problem(SECTION, "token_file", what)
                            .hint("`openssl rand -hex 32` prints a good one"),
                    );
                }
                Ok(_) => {}
            }
        }
        if metrics.listen.are_loopback() {
            return;
        }
        if metrics.token_file.is_none() {
            let what = "other hosts can reach such an address, and no token is required";
            let problem = self.problem(SECTION, "listen", what);
            problems.push(problem.hint("set `token_file`, or listen on 127.0.0.1 only"));
        }
        let encrypted = server.tls_certificate.is_some() && server.tls_key.is_some();
        if !encrypted && !server.insecure_http {
            let what = "the token would cross the network without encryption";
            let hint = "set tls_certificate and tls_key in [server]; or, behind a gateway that terminates TLS, \
                        `insecure_http = true` there";
            problems.push(self.problem(SECTION, "listen", what).hint(hint));
        }
    }
}

/// Whether a text can be the token of callers of `/metrics`.
pub fn is_token(text: &str) -> bool {
    text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_graphic())
}
