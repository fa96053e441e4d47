//! What people see on a bad night: the pages in the browser, without a session.

use std::time::{Duration, Instant};

use kiln_records::{JobId, Moment, SetId, usage::UsageCurve};
use serde_json::json;
use uuid::Uuid;

use super::{
    browser::{Browser, no_browser},
    night::{HOSTILE, Night, Told},
};
use crate::support::{
    Kiln,
    serve::{Server, send},
    source_dir,
};

/// The line of the long log that says what went wrong.
const ERROR: u64 = 70_321;

/// The lines of the long log.
const LONG: u64 = 100_000;

/// The jobs and records that the pages are about.
struct Records {
    running: JobId,
    failed: JobId,
    good: JobId,
    recipe: Uuid,
    image: Uuid,
    earlier_image: Uuid,
    schedule: Uuid,
    set: SetId,
}

fn min(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

fn at(ago: Duration) -> Moment {
    Moment::now().minus(ago)
}

/// Jobs that wait, run, failed and succeeded.
async fn bad_night(night: &Night) -> Records {
    let native = night.recipe("compute-node", "x86_64").await;
    let foreign = night.recipe("compute-node-arm", "aarch64").await;
    let native_image = night.image("compute-2026.11", "x86_64", true).await;
    night.image("compute-2026.11", "aarch64", false).await;
    night.image(HOSTILE, "x86_64", true).await;
    let schedule = night.schedule_of_sets("nightly compute", &[&native, &foreign]).await;
    let steps = |build: u64| {
        json!([
            { "step": "prepare", "wall_ms": 900, "cpu_ms": 400 }, { "step": "fetch", "wall_ms": 1200, "cpu_ms": 300 },
            { "step": "template", "wall_ms": 20, "cpu_ms": 10 }, { "step": "repos", "wall_ms": 2100, "cpu_ms": 100 },
            { "step": "build", "wall_ms": build, "cpu_ms": build }, { "step": "package", "wall_ms": 61_000, "cpu_ms": 200_000 },
            { "step": "upload", "wall_ms": 9_000, "cpu_ms": 2_000 },
        ])
    };
    let mut good = (JobId::new(), Uuid::nil());
    for (day, build, how) in [
        (5, 301_000, "native"),
        (4, 290_000, "native"),
        (3, 2_400_000, "emulated"),
        (2, 310_000, "native"),
    ] {
        let ago = min(day * 24 * 60);
        good = night
            .job(Told {
                name: format!("compute-2026.11.{day}"),
                arch: "x86_64",
                artifact: native.id.into(),
                status: "success",
                ago,
                run: json!({
                    "state": "success", "step": "upload", "steps": steps(build), "launched": at(ago),
                    "ended": at(ago.checked_sub(Duration::from_millis(build + 74_220)).unwrap()), "settled": true,
                    "used": { "memory": 3_u64 << 30, "disk": 6_u64 << 30, "cpu_ms": build },
                    "plan": { "how": how },
                    "uploads": [{
                        "upload": { "kind": "rootfs", "bucket": "boot-images", "key": "x/rootfs", "id": "u", "size": 1_234_567_890, "part_size": 5_242_880 },
                        "done": null,
                    }],
                }),
            })
            .await;
    }
    let (failed, _) = night
        .job(Told {
            name: "compute-arm-2026.11".to_owned(),
            arch: "aarch64",
            artifact: foreign.id.into(),
            status: "error",
            ago: min(95),
            run: json!({
                "state": { "failed": {
                    "code": "emulator_fault", "step": "build",
                    "detail": "qemu-aarch64 was ended by signal 11 in /usr/sbin/ldconfig, which configures libc-bin",
                    "hint": "retry without native twins, or build at a native place: the emulator failed, not the package",
                } },
                "step": "build", "launched": at(min(94)), "ended": at(min(40)), "settled": true, "attempt": 2,
                "steps": [
                    { "step": "prepare", "wall_ms": 1400, "cpu_ms": 900 }, { "step": "fetch", "wall_ms": 1100, "cpu_ms": 300 },
                    { "step": "template", "wall_ms": 20, "cpu_ms": 10 }, { "step": "repos", "wall_ms": 2100, "cpu_ms": 100 },
                ],
                "plan": {
                    "how": "emulated", "why": "emulated on this host, in namespaces: no place is aarch64",
                    "passed_over": [{ "place": "r-arm1", "driver": "docker", "code": "engine_gone", "why": "cannot connect to r-arm1: connection refused" }],
                },
                "found": { "kernel": "6.18.44-amd64", "boot_id": "0b6cf1c4-7c5f-4e0f-8d0c-1a9dd1d0a001", "hypervisor": null, "emulator": "qemu-aarch64 10.1.3" },
                "execs": { "twins": 41_237, "emulated": 1_904, "most_expensive": [
                    { "program": "/usr/sbin/ldconfig", "runs": 31, "cpu_ms": 812_000 }, { "program": "/usr/bin/python3.11", "runs": 212, "cpu_ms": 402_000 },
                    { "program": "/usr/bin/perl", "runs": 933, "cpu_ms": 120_400 }, { "program": "/usr/sbin/update-initramfs", "runs": 2, "cpu_ms": 44_000 },
                ] },
                "used": { "memory": 2_u64 << 30, "disk": 5_u64 << 30, "cpu_ms": 1_900_000 },
                "twins_fallback": { "attempt": 1, "failure": { "code": "script_failed", "step": "build", "detail": "config.sh ended with 139" } },
            }),
        })
        .await;
    night
        .says(
            failed,
            0,
            (0..LONG).map(|n| match n {
                ERROR => {
                    "\u{1b}[31mqemu: uncaught target signal 11 (Segmentation fault) - core dumped\u{1b}[0m".to_owned()
                }
                n => format!("Unpacking package-{n} (libgpg-error0) <b>bold</b> \u{202e}{n}"),
            }),
        )
        .await;
    for day in 1..4 {
        let detail = "404 for https://repo.example.org/suse/noarch/repodata/repomd.xml, tried for 500 s";
        night
            .job(Told {
                name: format!("login-2026.11.{day}"),
                arch: "x86_64",
                artifact: native.id.into(),
                status: "error",
                ago: min(day * 900),
                run: json!({
                    "state": { "failed": { "code": "repo_unreachable", "step": "repos", "detail": detail } },
                    "launched": at(min(day * 900)), "ended": at(min(day * 900 - 9)), "settled": true, "step": "repos",
                }),
            })
            .await;
    }
    let (running, _) = night
        .job(Told {
            name: HOSTILE.to_owned(),
            arch: "x86_64",
            artifact: native.id.into(),
            status: "building_image",
            ago: min(4),
            run: json!({
                "state": "running", "launched": at(min(3)), "step": "build", "steps": steps(1).as_array().unwrap()[..4],
                "used": { "memory": 1_u64 << 30, "disk": 3_u64 << 30, "cpu_ms": 100_000 },
            }),
        })
        .await;
    night.says(running, 0, (0..20).map(|n| format!("begun {n}"))).await;
    // These wait for the server: no command of their own carries them out.
    for (n, (name, arch)) in [
        ("storage-2026.11", "x86_64"),
        ("gpu-2026.11", "x86_64"),
        (HOSTILE, "x86_64"),
    ]
    .into_iter()
    .enumerate()
    {
        night
            .job(Told {
                name: name.to_owned(),
                arch,
                artifact: native.id.into(),
                status: "creating",
                ago: min(190 - 30 * n as u64),
                run: json!({ "owner": null, "plan": { "runner": null } }),
            })
            .await;
    }
    Records {
        running,
        failed,
        good: good.0,
        recipe: native.id.into(),
        earlier_image: night.image("made", "x86_64", true).await.id.into(),
        image: night.image("made", "x86_64", true).await.id.into(),
        schedule: schedule.id.into(),
        set: night.set(&native_image).await,
    }
}

/// Stores a picture for the documentation if asked to.
async fn picture(browser: &Browser, name: &str) {
    let picture = browser.picture().await;
    assert!(picture.len() > 10_000);
    if std::env::var_os("KILN_UPDATE_SCREENSHOTS").is_some() {
        fs_err::write(source_dir().join("docs").join(name), picture).unwrap();
    }
}

/// More than the disk of any host has free.
fn full_disk() -> String {
    let here = nix::sys::statvfs::statvfs(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let total = here.blocks() * here.fragment_size();
    format!("{}B", total.saturating_sub(6 << 30))
}

#[test(threads = 2)]
async fn a_bad_night_in_a_browser() {
    needs!(no_browser());
    let floor = full_disk();
    let settings = [("KILN__CAPACITY__DISK_FLOOR", floor.as_str())];
    let mut server = Server::start_in(Kiln::new(), &settings);
    let night = Night::at(&server).await;
    let told = bad_night(&night).await;
    let browser = Browser::open().await;
    let url = |server: &Server, path: &str| format!("{}{path}", server.url);

    // The overview, from the address alone.
    browser.goto(&url(&server, "/")).await;
    browser
        .until("document.querySelector('#queue tbody tr') && document.body.innerText.includes('its turn is after')")
        .await;
    let text = browser.text().await;
    for expected in [
        "free now above the floor",
        "The disk is full",
        "emulator_fault",
        "repo_unreachable",
        "nightly compute",
        "heartbeat",
        "about",
        "left",
        "compute-2026.11",
        "incomplete",
        "missing",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    assert!(
        text.contains("<img src=x onerror=\"document.title='broken'\">\\u{202e}gnp.exe</script>"),
        "{text}"
    );
    assert_eq!(
        browser
            .value("document.querySelectorAll('img, script:not([src]), [style], [onclick]').length")
            .await,
        0
    );
    assert_eq!(browser.value("document.title").await, "Overview · Kiln");
    picture(&browser, "dashboard-full-disk.png").await;

    // Every page: for people with other eyes, on a phone, in the dark.
    let pages = [
        "/ui".to_owned(),
        "/ui/jobs".to_owned(),
        "/ui/images".to_owned(),
        "/ui/recipes".to_owned(),
        "/ui/sets".to_owned(),
        "/ui/schedules".to_owned(),
        format!("/ui/jobs/{}", told.running),
        format!("/ui/jobs/{}", told.failed),
        format!("/ui/jobs/{}", told.good),
        format!("/ui/recipes/{}", told.recipe),
        format!("/ui/images/{}", told.image),
        format!("/ui/images/{}/since/{}", told.image, told.earlier_image),
        format!("/ui/schedules/{}", told.schedule),
        format!("/ui/sets/{}", told.set),
        "/ui/images/nothing".to_owned(),
    ];
    for page in &pages {
        browser.resize(1280, 900).await;
        browser.darken(false).await;
        browser.goto(&url(&server, page)).await;
        browser.is_accessible(page).await;
        browser.darken(true).await;
        browser.is_accessible(&format!("{page}, dark")).await;
        browser.resize(360, 740).await;
        assert_eq!(
            browser.value("document.documentElement.scrollWidth <= 360").await,
            true,
            "{page} is wider than a phone: {}",
            browser.value("[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > 361 && !e.closest('.wide, .log')).map((e) => e.outerHTML.slice(0, 120)).slice(0, 5).join('\\n')").await,
        );
    }
    browser.resize(1280, 900).await;
    browser.darken(false).await;

    // A set: what it lacks, and the channel that leads to it.
    browser.goto(&url(&server, "/ui/sets")).await;
    browser.click("a[href^='/ui/sets/']").await;
    browser
        .until(&format!("location.pathname === '/ui/sets/{}'", told.set))
        .await;
    let text = browser.text().await;
    for expected in [
        "compute@24.11",
        "incomplete",
        "it was not booted yet",
        "Each image needs a boot check",
        "non-voting",
        "failed",
        "1 min 15 s",
        "stable",
        "promoted",
        "\\u{202e}",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    assert_eq!(browser.value("document.querySelectorAll('img').length").await, 0);

    // What changed since an earlier image; the files of both were removed by somebody else.
    browser.goto(&url(&server, &format!("/ui/images/{}", told.image))).await;
    browser
        .click(&format!("a[href$='/since/{}']", told.earlier_image))
        .await;
    browser.until("location.pathname.includes('/since/')").await;
    let text = browser.text().await;
    for expected in ["since", "Inputs", "Packages", "cannot be found in S3"] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }

    // The failed job: 100 000 lines, of which the page has a few.
    let failed = format!("/ui/jobs/{}", told.failed);
    let mut curve = UsageCurve::new(2);
    for minute in 0..40 {
        let used = json!({ "memory": (minute + 1) << 27, "disk": minute << 26, "cpu_ms": minute * 90_000 });
        curve.note(min(minute), serde_json::from_value(used).unwrap());
    }
    night.store.put_usage(told.failed, &curve).await.unwrap();
    browser.goto(&url(&server, &failed)).await;
    let text = browser.text().await;
    for expected in [
        "emulator_fault",
        "signal 11 in /usr/sbin/ldconfig",
        "Hint: retry without native twins",
        "engine_gone",
        "qemu-aarch64 10.1.3",
        "41237 runs as native twins",
        "/usr/bin/python3.11",
        "Attempt 1 failed with native twins",
        "Resources over time",
        "CPUs: 1.5 at most",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    picture(&browser, "dashboard-failed-job.png").await;
    browser.click("#first-error").await;
    browser.until(&format!("document.querySelector('#L{ERROR}.hit')")).await;
    let line = browser
        .value(&format!("document.querySelector('#L{ERROR} span').textContent"))
        .await;
    assert_eq!(
        line,
        "qemu: uncaught target signal 11 (Segmentation fault) - core dumped"
    );
    assert_eq!(browser.value("location.hash").await, format!("#L{ERROR}"));
    // A permanent address of a line.
    browser.refresh().await;
    browser.until(&format!("document.querySelector('#L{ERROR}.hit')")).await;
    let other = browser
        .value(&format!("document.querySelector('#L{} span').textContent", ERROR + 1))
        .await;
    assert_eq!(
        other,
        format!(
            "Unpacking package-{0} (libgpg-error0) <b>bold</b> \\u{{202e}}{0}",
            ERROR + 1
        )
    );
    // A search, and scrolling far: the page stays small.
    browser.value("(document.querySelector('#find').value = 'PACKAGE-99123 ', document.querySelector('#log-tools').requestSubmit())").await;
    browser.until("document.querySelector('#L99123.hit')").await;
    // Each look goes on upwards: how many lines a slow host fetches in a time is not known.
    browser
        .until(
            "(document.querySelector('#log-box').scrollTop = 0, \
             Number(document.querySelector('#lines').firstChild.id.slice(1)) < 97000)",
        )
        .await;
    let rows = browser.value("document.querySelectorAll('#lines li').length").await;
    assert!(rows.as_u64().unwrap() <= 2000, "{rows} lines are on the page");

    // A running job: its log grows on the page, also after the server was away.
    let running = format!("/ui/jobs/{}", told.running);
    browser.goto(&url(&server, &running)).await;
    browser.until("document.body.innerText.includes('begun 19')").await;
    night.says(told.running, 20, ["while you look".to_owned()]).await;
    browser
        .until("document.body.innerText.includes('while you look')")
        .await;
    let token = "document.querySelector('#state [name=form_token]').value";
    let old_token = browser.value(token).await;
    let address = server.address().to_string();
    let Server { kiln, mut started, .. } = server;
    started.signal(nix::sys::signal::Signal::SIGTERM);
    crate::support::eventually(|| started.has_ended());
    browser.until("!document.querySelector('#connection').hidden").await;
    night
        .says(told.running, 21, (0..3000).map(|n| format!("meanwhile {n}")))
        .await;
    let again = [settings[0], ("KILN__SERVER__LISTEN", address.as_str())];
    server = Server::start_in(kiln, &again);
    browser
        .until("document.querySelector('#connection').hidden && document.body.innerText.includes('meanwhile 2999')")
        .await;
    assert!(
        browser
            .value("document.querySelectorAll('#lines li').length")
            .await
            .as_u64()
            .unwrap()
            <= 2000
    );

    // It is cancelled with the keyboard alone, and the page learns it. Its form is that of the new server.
    browser.until(&format!("{token} !== {old_token}")).await;
    browser.click("#state summary").await;
    browser.keys("#state button.danger", "\u{e007}").await;
    browser
        .until("document.querySelector('#state').innerText.includes('cancelled')")
        .await;

    // Without a script everything is on the page, too.
    let html = async |path: &str| {
        let answer = send(server.request("GET", path).header("accept", "text/html")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.text
    };
    let page = html(&format!("{failed}?from=0&errors=true")).await;
    assert!(page.contains(&format!("Found in line {ERROR}.")) || page.contains("Search on"));
    let page = html(&format!("{failed}?from=70000")).await;
    assert!(page.contains("id=\"L70000\"") && page.contains("Earlier lines") && page.contains("Later lines"));
    let whole = send(server.request("GET", &format!("{failed}/log.txt"))).await;
    assert_eq!(whole.text.lines().count() as u64, LONG);
    let begun = Instant::now();
    let overview = html("/ui").await;
    println!(
        "the overview took {:?} and has {} bytes",
        begun.elapsed(),
        overview.len()
    );

    browser.close().await;
    drop(night);
    drop(server);
}

#[test(threads = 2)]
async fn a_stuck_queue_says_why() {
    needs!(no_browser());
    let server = Server::start_in(
        Kiln::new(),
        &[("KILN__CAPACITY__JOBS", "1"), ("KILN__CAPACITY__DISK_FLOOR", "1MiB")],
    );
    let night = Night::at(&server).await;
    let recipe = night.recipe("compute-node", "x86_64").await;
    let build = |wall: u64| json!([{ "step": "prepare", "wall_ms": 900, "cpu_ms": 400 }, { "step": "build", "wall_ms": wall, "cpu_ms": wall }]);
    let job = |name: &str, status, ago, run| Told {
        name: name.to_owned(),
        arch: "x86_64",
        artifact: recipe.id.into(),
        status,
        ago,
        run,
    };
    let good = json!({ "state": "success", "steps": build(1_500_000), "launched": at(min(2000)), "ended": at(min(1975)), "settled": true });
    night.job(job("compute-2026.11.23", "success", min(2000), good)).await;
    let steps = json!([
        { "step": "prepare", "wall_ms": 900, "cpu_ms": 400 }, { "step": "fetch", "wall_ms": 1200, "cpu_ms": 300 },
        { "step": "template", "wall_ms": 20, "cpu_ms": 10 }, { "step": "repos", "wall_ms": 2100, "cpu_ms": 100 },
    ]);
    let stuck = json!({
        "state": "running", "launched": at(min(221)), "step": "build", "steps": steps,
        "used": { "memory": 3_u64 << 30, "disk": 7_u64 << 30, "cpu_ms": 1_400_000 },
    });
    let (stuck, _) = night
        .job(job("compute-2026.11.24", "building_image", min(222), stuck))
        .await;
    night.says(stuck, 0, ["Unpacking linux-image".to_owned()]).await;
    for n in 0..9_u64 {
        let waits = json!({ "owner": null, "plan": { "runner": null } });
        night
            .job(job(
                &format!("login-2026.11.24-{n}"),
                "creating",
                min(200 - n * 17),
                waits,
            ))
            .await;
    }
    let browser = Browser::open().await;
    browser.goto(&format!("{}/ui", server.url)).await;
    browser
        .until("document.body.innerText.includes('1 job is running, which is as many as its place runs at once')")
        .await;
    let text = browser.text().await;
    for expected in [
        "its turn is after 8 other jobs",
        "longer than usual",
        "1 of 1 at once",
        "9 waiting",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    picture(&browser, "dashboard-stuck-queue.png").await;
    browser.close().await;
}
