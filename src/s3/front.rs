//! Stands between connections and the protocol: bounds the number of requests and the wait for their bodies, refuses
//! what the protocol's library would take without a limit, and completes its errors. Pure: no I/O of its own.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Request,
    body::{Frame, Incoming, SizeHint},
    header::{
        AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS,
    },
};
use s3s::{
    Body, HttpError, HttpResponse, S3Error, S3ErrorCode, S3Result, StdError,
    access::{S3Access, S3AccessContext},
    service::S3Service,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep, timeout},
};

use super::{
    REGION,
    chunked::Chunked,
    places::{Limits, Place},
};

/// The part of an answer before and after the code of its error.
const CODE: (&str, &str) = ("<Code>", "</Code>");

/// The protocol with its limits. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Front {
    protocol: S3Service,
    limits: Limits,
    room: Arc<Semaphore>,
}

impl Front {
    pub(super) fn new(protocol: S3Service, limits: Limits) -> Self {
        Self {
            protocol,
            limits,
            room: Arc::new(Semaphore::new(limits.requests)),
        }
    }

    /// Answers a request that came by the connection at `place`.
    pub(super) async fn answer(
        &self,
        mut request: Request<Incoming>,
        place: Arc<Place>,
    ) -> Result<HttpResponse<Held>, HttpError> {
        let room = Arc::clone(&self.room).acquire_owned();
        let permit = timeout(self.limits.patience, room).await.ok().and_then(Result::ok);
        let looked = if permit.is_some() {
            look_at(&request)
        } else {
            let busy = "too many requests are in progress";
            Err(S3Error::with_message(S3ErrorCode::SlowDown, busy))
        };
        let answer = match looked {
            Ok(()) => {
                request.extensions_mut().insert(place);
                let chunked = Chunked::of(request.headers());
                let body = |body| Body::http_body_unsync(Paced::new(body, chunked, self.limits.stall));
                self.protocol.call(request.map(body)).await?
            }
            Err(refusal) => refusal
                .to_http_response()
                .map_err(|error| HttpError::new(Box::new(error)))?,
        };
        Ok(harmless(with_message(answer)).map(|body| Held { body, _permit: permit }))
    }
}

/// Adds what keeps browsers from taking an object for a page: whoever has a presigned address may open it in one.
fn harmless(mut answer: HttpResponse) -> HttpResponse {
    for (name, value) in [
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'; sandbox",
        ),
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Refuses what the library takes too much of, or takes amiss.
fn look_at(request: &Request<Incoming>) -> S3Result<()> {
    let headers = request.headers();
    // The library reads a form into memory, whoever sent it.
    if *request.method() == Method::POST && is_form(headers) {
        let message = "objects are uploaded by PUT";
        return Err(S3Error::with_message(S3ErrorCode::NotImplemented, message));
    }
    check_region(headers)
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("multipart/"))
}

/// Refuses a region that the library cannot take, such as `US` of s3cmd, in the way that has clients use the right one.
fn check_region(headers: &HeaderMap) -> S3Result<()> {
    let scope = headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok());
    let scope = scope.and_then(|header| header.split_once("Credential=")?.1.split([',', ' ']).next());
    let region = scope.and_then(|scope| scope.rsplit('/').nth(2));
    match region.map(|region| (region, region.parse::<s3s::region::Region>())) {
        Some((region, Err(_))) => {
            let message = format!("the region `{region}` is wrong; expecting `{REGION}`");
            Err(S3Error::with_message(
                S3ErrorCode::AuthorizationHeaderMalformed,
                message,
            ))
        }
        _ => Ok(()),
    }
}

/// Gives an error without a message its code in words: clients print `Unknown` otherwise.
fn with_message(mut answer: HttpResponse) -> HttpResponse {
    if !answer.status().is_client_error() && !answer.status().is_server_error() {
        return answer;
    }
    let status = answer.status().as_u16();
    let text = answer
        .body()
        .bytes()
        .and_then(|bytes| String::from_utf8(bytes.into()).ok());
    let completed = text.and_then(|text| {
        let (before, rest) = text.split_once(CODE.0)?;
        let (code, rest) = rest.split_once(CODE.1)?;
        tracing::debug!(status, code, "embedded S3: a request was refused");
        let message = if rest.contains("<Message>") {
            String::new()
        } else {
            format!("<Message>{}</Message>", in_words(code))
        };
        let region = if code == S3ErrorCode::AuthorizationHeaderMalformed.as_str() {
            format!("<Region>{REGION}</Region>")
        } else {
            String::new()
        };
        Some(format!("{before}{}{code}{}{message}{region}{rest}", CODE.0, CODE.1))
    });
    if let Some(text) = completed {
        *answer.body_mut() = Body::from(text);
    }
    answer
}

/// `NoSuchKey` as "no such key".
fn in_words(code: &str) -> String {
    let letters: Vec<char> = code.chars().collect();
    let mut words = String::with_capacity(code.len() + 8);
    for (at, letter) in letters.iter().enumerate() {
        let is_lower = |at: Option<usize>| at.and_then(|at| letters.get(at)).is_some_and(|it| it.is_lowercase());
        // `CORSConfiguration` is two words.
        if letter.is_uppercase() && at > 0 && (is_lower(at.checked_sub(1)) || is_lower(at.checked_add(1))) {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// Lets in whoever has signed the request, and notes it for the connection.
#[derive(Debug)]
pub(super) struct Signed;

#[async_trait::async_trait]
impl S3Access for Signed {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            let message = "the request is not signed";
            return Err(S3Error::with_message(S3ErrorCode::AccessDenied, message));
        }
        if let Some(place) = context.extensions_mut().get::<Arc<Place>>() {
            place.note_signature();
        }
        Ok(())
    }
}

/// The body of an answer, which counts as a request in progress until it has been sent or the connection is gone.
#[derive(Debug)]
pub(super) struct Held {
    body: Body,
    _permit: Option<OwnedSemaphorePermit>,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request. Fails when the next byte takes too long, and when its chunks are not as promised.
#[derive(Debug)]
struct Paced<B> {
    body: B,
    chunked: Option<Chunked>,
    stall: Duration,
    until: Pin<Box<Sleep>>,
    stalled: bool,
}

impl<B> Paced<B> {
    fn new(body: B, chunked: Option<Chunked>, stall: Duration) -> Self {
        Self {
            body,
            chunked,
            stall,
            until: Box::pin(sleep(stall)),
            stalled: false,
        }
    }
}

impl<B> hyper::body::Body for Paced<B>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<StdError>> + Unpin,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            if !this.stalled {
                this.stalled = true;
                this.until.as_mut().reset(Instant::now() + this.stall);
            }
            ready!(this.until.as_mut().poll(cx));
            let silence = format!("the client sent nothing for {} s", this.stall.as_secs());
            return Poll::Ready(Some(Err(silence.into())));
        };
        this.stalled = false;
        let frame = frame.transpose().map_err(Into::into)?;
        Poll::Ready(match (&mut this.chunked, frame) {
            (None, frame) => frame.map(Ok),
            (Some(chunked), Some(frame)) => match frame.into_data() {
                Ok(bytes) => Some(chunked.pass(bytes).map(Frame::data).map_err(StdError::from)),
                Err(frame) => Some(Ok(frame)),
            },
            (Some(chunked), None) => chunked.end().err().map(|fault| Err(fault.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        // A body in chunks has an end of its own, which is looked at in any case.
        self.chunked.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.chunked {
            None => self.body.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::{body::Body as _, header::HeaderValue};

    use super::*;

    fn signed_for(region: &str) -> HeaderMap {
        let header = format!(
            "AWS4-HMAC-SHA256 Credential=key/20261122/{region}/s3/aws4_request, SignedHeaders=host, Signature=0"
        );
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&header).unwrap())])
    }

    #[test]
    fn a_region_that_is_no_name_is_answered_with_the_right_one() {
        let refusal = check_region(&signed_for("US")).unwrap_err();
        let answer = with_message(refusal.to_http_response().unwrap());
        assert_eq!(answer.status(), 400);
        let text = String::from_utf8(answer.body().bytes().unwrap().into()).unwrap();
        assert!(text.contains("<Code>AuthorizationHeaderMalformed</Code>"), "{text}");
        assert!(text.contains("<Region>us-east-1</Region>"), "{text}");
        for region in ["us-east-1", "eu-central-1", "local"] {
            assert!(check_region(&signed_for(region)).is_ok(), "{region}");
        }
        assert!(check_region(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn every_error_has_a_message() {
        for (code, words) in [
            (S3ErrorCode::NoSuchKey, "no such key"),
            (S3ErrorCode::NoSuchCORSConfiguration, "no such cors configuration"),
            (S3ErrorCode::AccessDenied, "access denied"),
        ] {
            let answer = with_message(S3Error::from(code).to_http_response().unwrap());
            let text = String::from_utf8(answer.body().bytes().unwrap().into()).unwrap();
            assert!(text.contains(&format!("<Message>{words}</Message>")), "{text}");
        }
        let own = S3Error::with_message(S3ErrorCode::NoSuchKey, "own words");
        let answer = with_message(own.to_http_response().unwrap());
        let text = String::from_utf8(answer.body().bytes().unwrap().into()).unwrap();
        assert_eq!(text.matches("<Message>own words</Message>").count(), 1, "{text}");
    }

    #[tokio::test]
    async fn a_client_that_sends_no_more_of_a_body_is_not_waited_for() {
        let silent = Body::from(s3s::dto::StreamingBlob::wrap(futures::stream::pending::<
            std::io::Result<Bytes>,
        >()));
        let mut paced = Paced::new(silent, None, Duration::from_millis(20));
        let frame = std::future::poll_fn(|cx| Pin::new(&mut paced).poll_frame(cx)).await;
        assert!(frame.unwrap().unwrap_err().to_string().contains("sent nothing"));
    }

    #[tokio::test]
    async fn a_body_without_its_final_chunk_ends_in_an_error() {
        let headers = [("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        let chunked = Chunked::of(&headers.into_iter().collect());
        let mut paced = Paced::new(Body::from("5\r\nhello\r\n".to_owned()), chunked, Duration::from_secs(9));
        let mut next = async || std::future::poll_fn(|cx| Pin::new(&mut paced).poll_frame(cx)).await;
        assert!(next().await.unwrap().is_ok());
        assert!(next().await.unwrap().is_err());
    }

    #[test]
    fn forms_are_told_by_their_type() {
        let with = |kind| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        assert!(is_form(&with("multipart/form-data; boundary=x")));
        assert!(is_form(&with(" Multipart/Form-Data; boundary=x")));
        assert!(!is_form(&with("application/xml")) && !is_form(&HeaderMap::new()));
    }
}
