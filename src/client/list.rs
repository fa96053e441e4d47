//! Reads lists. The query asks for the wanted records only; IMS ignores that and returns everything, so the answer is
//! filtered again here. Talks to the server.

use kiln_records::{Failure, JobStatus, JobType, arch::Arch};
use reqwest::{
    Url,
    header::{HeaderMap, LINK},
};

use super::{Client, Collection, Data, refusal};

/// The largest page that Kiln returns when pages are asked for.
const LARGEST_PAGE: usize = 10_000;

/// The wanted part of a list; by default everything, in the server's order.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only records of exactly this name.
    pub name: Option<String>,
    /// Only records whose id begins with this.
    pub id_prefix: Option<String>,
    /// Only records of this architecture.
    pub arch: Option<Arch>,
    /// Only jobs in one of these states; empty for all.
    pub statuses: Vec<JobStatus>,
    /// Only jobs of this type.
    pub job_type: Option<JobType>,
    /// The sort key.
    pub sort: Option<SortKey>,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// The most records to return.
    pub limit: Option<usize>,
}

/// The sort keys of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortKey {
    /// The time of creation.
    Created,
    /// The name.
    Name,
}

impl Filter {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        let mut add = |key, value: Option<String>| pairs.extend(value.map(|value| (key, value)));
        add("name", self.name.clone());
        add("id_prefix", self.id_prefix.clone());
        add("arch", self.arch.map(|arch| arch.name().to_owned()));
        for status in &self.statuses {
            add("status", Some(status.name().to_owned()));
        }
        add("job_type", self.job_type.map(|job_type| job_type.name().to_owned()));
        let key = match self.sort {
            Some(SortKey::Name) => Some("name"),
            Some(SortKey::Created) => Some("created"),
            None => self.reverse.then_some("created"),
        };
        let hyphen = if self.reverse { "-" } else { "" };
        add("sort", key.map(|key| format!("{hyphen}{key}")));
        add(
            "limit",
            self.limit.map(|limit| limit.clamp(1, LARGEST_PAGE).to_string()),
        );
        pairs
    }

    fn admits(&self, collection: &Collection, record: &Data) -> bool {
        let is = |member: &str, wanted: Option<&str>| wanted.is_none_or(|wanted| record.text(member) == Some(wanted));
        let begins = |prefix: &String| record.text(collection.id).is_some_and(|id| id.starts_with(prefix));
        let status = record.text("status");
        is(collection.name, self.name.as_deref())
            && self.id_prefix.as_ref().is_none_or(begins)
            && is("arch", self.arch.map(Arch::name))
            && is("job_type", self.job_type.map(JobType::name))
            && (self.statuses.is_empty() || self.statuses.iter().any(|wanted| Some(wanted.name()) == status))
    }

    /// Sorts the records of a server that cannot sort, and returned the order of creation. Stable, so it changes
    /// nothing if the server has sorted.
    fn arrange(&self, collection: &Collection, records: &mut [Data]) {
        let member = match self.sort {
            Some(SortKey::Name) => collection.name,
            _ if self.reverse => "created",
            _ => return,
        };
        let key = |record: &Data| record.text(member).unwrap_or_default().to_owned();
        if self.reverse {
            records.sort_by_cached_key(|record| std::cmp::Reverse(key(record)));
        } else {
            records.sort_by_cached_key(key);
        }
    }
}

impl Client {
    /// As [`Client::list`], for a list of Kiln's own that the server filters and sorts.
    pub async fn list_as_answered(&self, collection: &Collection, filter: &Filter) -> Result<Vec<Data>, Failure> {
        let mut records = self.pages(collection, filter, |_| true).await?;
        records.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(records)
    }

    /// The records of a collection that match `filter`.
    pub async fn list(&self, collection: &Collection, filter: &Filter) -> Result<Vec<Data>, Failure> {
        let admits = |record: &Data| filter.admits(collection, record);
        let mut records = self.pages(collection, filter, admits).await?;
        filter.arrange(collection, &mut records);
        records.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(records)
    }

    /// What all pages of a collection have of what is wanted, until there is enough of it.
    async fn pages(
        &self,
        collection: &Collection,
        filter: &Filter,
        is_wanted: impl Fn(&Data) -> bool,
    ) -> Result<Vec<Data>, Failure> {
        let mut address = self.server.address(collection.path);
        let pairs = filter.pairs();
        if !pairs.is_empty() {
            address.query_pairs_mut().extend_pairs(pairs);
        }
        let mut records: Vec<Data> = Vec::new();
        loop {
            let (page, next) = self.get_page(address.clone()).await?;
            let Data::List(page) = page else {
                return Err(refusal::no_such_server(&self.server));
            };
            records.extend(page.into_iter().filter(&is_wanted));
            let enough = filter.limit.is_some_and(|limit| records.len() >= limit);
            // A server that returns the same page for ever must not cause an endless loop.
            match next.filter(|next| !enough && Some(next.as_str()) != address.query()) {
                // Only the query: a gateway's paths may differ from those that the server behind it knows.
                Some(next) => address.set_query(Some(&next)),
                None => return Ok(records),
            }
        }
    }
}

/// The query of the next page (RFC 8288).
pub(super) fn next_query(headers: &HeaderMap) -> Option<String> {
    let anywhere = Url::parse("http://localhost/").ok()?;
    headers.get_all(LINK).iter().find_map(|value| {
        let (address, parameters) = value.to_str().ok()?.strip_prefix('<')?.split_once('>')?;
        let is_next = parameters
            .split(';')
            .any(|parameter| matches!(parameter.trim(), "rel=\"next\"" | "rel=next"));
        let address = anywhere.join(address).ok()?;
        address.query().filter(|_| is_next).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::{super::collection, *};

    #[test]
    fn the_next_page_is_found() {
        let query = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LINK, value.parse().unwrap());
            next_query(&headers)
        };
        assert_eq!(
            query("</v3/images?limit=2&cursor=a_b>; rel=\"next\"").unwrap(),
            "limit=2&cursor=a_b"
        );
        assert_eq!(query("</v3/images?limit=2>; rel=\"prev\""), None);
        assert_eq!(query("nonsense"), None);
    }

    #[test]
    fn what_ims_ignores_is_done_here() {
        let list = r#"[{"id":"1","name":"b","created":"2020","arch":"aarch64"},{"id":"2","name":"a","created":"2021","arch":"aarch64"},{"id":"3","name":"c","created":"2022","arch":"x86_64"}]"#;
        let mut records = serde_json::from_str::<Data>(list).unwrap().into_items();
        let filter = Filter {
            arch: Some(Arch::Aarch64),
            sort: Some(SortKey::Name),
            ..Filter::default()
        };
        records.retain(|record| filter.admits(&collection::IMAGES, record));
        filter.arrange(&collection::IMAGES, &mut records);
        let ids: Vec<_> = records.iter().map(|record| record.text("id").unwrap()).collect();
        assert_eq!(ids, ["2", "1"]);
        assert_eq!(
            filter.pairs(),
            [("arch", "aarch64".to_owned()), ("sort", "name".to_owned())]
        );
    }
}
