//! How quick it is: figures to look at, so not part of the ordinary run.
//! `cargo test --release --test store speed -- --ignored --nocapture --test-threads=1`

use std::time::Instant;

use futures::future::join_all;
use kiln::store::{After, Query, Side};

use crate::store::place::{Place, image, images, job};

const CALLERS: u32 = 32;
const EACH: u32 = 320;

#[test(threads = 2)]
#[ignore = "a measurement"]
async fn on_sqlite() {
    figures("SQLite", &Place::sqlite()).await;
}

#[test(threads = 2)]
#[ignore = "a measurement"]
async fn on_postgres() {
    figures("PostgreSQL", &Place::postgres()).await;
}

async fn figures(name: &str, place: &Place) {
    let store = place.open().await;
    let count = CALLERS * EACH;
    let begun = Instant::now();
    join_all((0..CALLERS).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                let record = image("cray-shasta-compute-sles15sp5.aarch64-1.4.24");
                let objects = ["kernel", "initrd", "rootfs", "manifest.json"];
                let objects = objects.map(|object| format!("s3://boot-images/{}/{object}", record.id));
                images(&store).insert(&record, &objects).await.unwrap();
            }
        })
    }))
    .await
    .into_iter()
    .for_each(|done| done.unwrap());
    let creates = f64::from(count) / begun.elapsed().as_secs_f64();

    let begun = Instant::now();
    for _ in 0..500 {
        store.insert_job(&job("j")).await.unwrap();
    }
    let alone = 500.0 / begun.elapsed().as_secs_f64();

    let mut lists = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let (mut seen, mut after) = (0, None);
        while seen < 10_000 {
            let query = Query {
                limit: 1000,
                after,
                ..Query::default()
            };
            let page = images(&store).page(Side::Live, &query).await.unwrap();
            seen += page.len();
            let last = page.last().unwrap();
            after = Some(After {
                key: last.position.to_string(),
                id: last.record.id.to_string(),
            });
        }
        lists.push(begun.elapsed());
    }
    lists.sort();

    let begun = Instant::now();
    assert_eq!(
        images(&store).delete(None, kiln_records::Moment::now()).await.unwrap(),
        u64::from(count)
    );
    let deleted = begun.elapsed();
    let begun = Instant::now();
    assert_eq!(
        images(&store).purge(Side::Deleted, None, false).await.unwrap(),
        u64::from(count)
    );
    let purged = begun.elapsed();
    println!(
        "{name}: {creates:.0} images/s by {CALLERS} callers, {alone:.0} jobs/s by one; \
         10 000 images listed in {:.0?}, {count} deleted in {deleted:.0?}, purged in {purged:.0?}",
        lists[2]
    );
}
