//! Follows a job, through restarts of its server. Network only.

use std::time::{Duration, Instant};

use super::session::Session;
use kiln_records::{Code, Failure};

use crate::client::{Following, News};

/// The longest absence of a server.
const PATIENCE: Duration = Duration::from_mins(5);

/// The pause between two attempts to reach the server.
const PAUSE: Duration = Duration::from_secs(1);

/// The news of a job, in order, without gaps and repetitions.
#[derive(Debug)]
pub(super) struct Follower<'s> {
    session: &'s Session,
    job: &'s str,
    /// The number of the last line.
    after: Option<u64>,
    following: Option<Following>,
    /// Whether there was ever a connection.
    was_connected: bool,
    /// The time since which the server has been silent.
    away: Option<Instant>,
}

impl<'s> Follower<'s> {
    /// Follows the job from the line after the number `after`.
    pub(super) fn new(session: &'s Session, job: &'s str, after: Option<u64>) -> Self {
        Self {
            session,
            job,
            after,
            following: None,
            was_connected: false,
            away: None,
        }
    }

    /// The news since the last call. None after [`News::End`].
    ///
    /// # Errors
    ///
    /// The server's failure, if it never answered, refuses, or is absent for too long.
    pub(super) async fn next(&mut self) -> Result<Vec<News>, Failure> {
        loop {
            let failure = match self.try_next().await {
                Ok(Some(news)) => {
                    self.note_back();
                    return Ok(news);
                }
                Ok(None) => Failure::new(
                    Code::ServerLost,
                    format!("{} closed the connection", self.session.client.server()),
                ),
                Err(failure) => failure,
            };
            self.following = None;
            if !self.was_connected || !failure.code.is_passing() {
                return Err(failure);
            }
            let printer = &self.session.printer;
            let away = self.away.get_or_insert_with(|| {
                printer.note(format_args!("{failure}; trying to connect again"));
                Instant::now()
            });
            if away.elapsed() > PATIENCE {
                return Err(failure);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_next(&mut self) -> Result<Option<Vec<News>>, Failure> {
        let client = &self.session.client;
        let following = match &mut self.following {
            Some(following) => following,
            none => none.insert(client.follow(self.job, self.after).await?),
        };
        self.was_connected = true;
        let news = following.next(client).await?;
        let last = news.iter().flatten().rev().find_map(|news| match news {
            News::Line(line) => Some(line.seq),
            _ => None,
        });
        self.after = last.or(self.after);
        Ok(news)
    }

    fn note_back(&mut self) {
        if self.away.take().is_some() {
            self.session.printer.note("connected again");
        }
    }
}
