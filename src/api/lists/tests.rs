//! Tests of the parameters of lists.

use super::*;

fn parse(query: &str) -> Result<ListQuery<Job>> {
    ListQuery::parse("/v3/images".to_owned(), &pairs(Some(query))?)
}

#[test]
fn a_cursor_survives_its_way_through_an_address() {
    let place = After {
        key: "a/b ü".to_owned(),
        id: "i".to_owned(),
    };
    assert_eq!(decode(&encode(&place)), Some(place.clone()));
    let list = parse("sort=-name&name=x%20y&limit=5").unwrap();
    let (_, link) = list.next_page(5, &place).unwrap();
    let link = link.to_str().unwrap();
    let address = link.strip_prefix("</v3/images?").unwrap().split_once('>').unwrap().0;
    let next = parse(address).unwrap();
    assert_eq!(next.query.after, Some(place));
    assert_eq!(
        (next.query.name.as_deref(), next.query.sort, next.query.descending),
        (Some("x y"), Sort::Name, true)
    );
}

#[test]
fn what_nobody_knows_is_ignored_and_what_is_wrong_refused() {
    assert!(parse("colour=blue&limit=10&").is_ok());
    assert!(parse("%ff=%zz&a=%").is_ok());
    for query in [
        "limit=0",
        "limit=x",
        "limit=10001",
        "sort=size",
        "arch=armv7",
        "status=done",
        "name=%00",
        "cursor=%00",
        "cursor=aS94",
    ] {
        assert!(parse(query).is_err(), "{query}");
    }
}
