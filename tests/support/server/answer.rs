//! An answer of the server, with the usual checks.

use reqwest::header::HeaderMap;
use serde_json::Value;

/// An answer of the server.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    what: String,
}

impl Answer {
    pub async fn of(request: reqwest::RequestBuilder, what: String) -> Self {
        let answer = request.send().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        Self {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            body: answer
                .bytes()
                .await
                .unwrap_or_else(|error| panic!("{what}: {error:?}"))
                .to_vec(),
            what,
        }
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that it is a problem of this status in the form that IMS's clients read. Returns it.
    #[track_caller]
    pub fn problem(self, status: u16) -> Value {
        let answer = self.is(status);
        assert_eq!(answer.header("content-type"), "application/problem+json", "{answer:?}");
        let problem = answer.json();
        assert_eq!(problem["status"], status, "{answer:?}");
        let title = problem["title"].as_str().unwrap_or_default();
        let phrase = reqwest::StatusCode::from_u16(status)
            .unwrap()
            .canonical_reason()
            .unwrap();
        assert_eq!(title, phrase, "{answer:?}");
        assert!(problem["detail"].is_string(), "{answer:?}");
        for (member, value) in problem.as_object().unwrap() {
            let known = match member.as_str() {
                "status" | "title" | "detail" | "errors" => true,
                // Beside what IMS has, only failures say more.
                "code" | "hint" => value.is_string() && problem["type"].is_string(),
                "type" => *value == format!("urn:kiln:failure:{}", problem["code"].as_str().unwrap_or_default()),
                _ => false,
            };
            assert!(known, "a problem has no such `{member}`: {answer:?}");
        }
        problem
    }

    /// Checks that it is a 422 with errors per field. Returns these.
    #[track_caller]
    pub fn errors(self) -> Value {
        let text = format!("{self:?}");
        let problem = self.problem(422);
        assert!(problem["errors"].is_object(), "there are no errors by field: {text}");
        problem["errors"].clone()
    }

    /// Checks that it is an answer of IMS's web framework itself: a message, not a problem.
    #[track_caller]
    pub fn message(self, status: u16) {
        let answer = self.is(status);
        assert_eq!(answer.header("content-type"), "application/json", "{answer:?}");
        assert!(answer.json()["message"].is_string(), "{answer:?}");
        assert_eq!(answer.json().as_object().unwrap().len(), 1, "{answer:?}");
    }

    /// Checks that it is a 204 without a body.
    #[track_caller]
    pub fn done(self) {
        let answer = self.is(204);
        assert!(answer.body.is_empty(), "{answer:?}");
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "{}: {} {:?}\n{body}", self.what, self.status, self.headers)
    }
}
