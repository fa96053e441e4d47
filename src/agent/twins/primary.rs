//! Reads the list of packages of an rpm repository: `primary.xml`. Reads from the given input only.

use std::{
    fmt::Display,
    io::{self, BufRead},
};

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};
use reqwest::Url;

use kiln_records::PackageDigest;

use super::index::{Listed, Offer};

/// A package as an index describes it.
#[derive(Debug, Default)]
struct Described {
    name: String,
    version: String,
    arch: String,
    digest: String,
    size: Option<u64>,
    location: Option<String>,
    source: String,
    vendor: String,
    /// The address that `location` is relative to, if it is not the repository's.
    base: Option<Url>,
}

/// Hands the packages of the repository at `address` to `take`, each with its architecture. `is_signed` says whether
/// each must be signed.
///
/// # Errors
///
/// The text is not such a list.
pub(super) fn read(
    text: impl BufRead,
    address: &Url,
    is_signed: bool,
    mut take: impl FnMut(&str, Listed),
) -> io::Result<()> {
    let broken = |error: &dyn Display| io::Error::other(format!("a repository's index is broken: {error}"));
    let mut reader = Reader::from_reader(text);
    let (mut buffer, mut depth) = (Vec::new(), 0_u32);
    let (mut package, mut text) = (Described::default(), String::new());
    loop {
        buffer.clear();
        match reader.read_event_into(&mut buffer).map_err(|error| broken(&error))? {
            Event::Start(element) => {
                depth += 1;
                text.clear();
                // metadata, package, and its properties; files and requirements are deeper.
                match depth {
                    2 => package = Described::default(),
                    3 => package.take_attributes(&element),
                    _ => {}
                }
            }
            Event::Empty(element) if depth == 2 => package.take_attributes(&element),
            Event::Text(piece) if depth == 3 || depth == 4 => {
                text.push_str(&piece.decode().map_err(|error| broken(&error))?);
            }
            Event::End(element) => {
                match (depth, element.name().as_ref()) {
                    (3, b"name") => package.name = std::mem::take(&mut text),
                    (3, b"arch") => package.arch = std::mem::take(&mut text),
                    (3, b"checksum") if package.digest.is_empty() => package.digest = std::mem::take(&mut text),
                    (4, b"rpm:sourcerpm") => package.source = std::mem::take(&mut text),
                    (4, b"rpm:vendor") => package.vendor = std::mem::take(&mut text),
                    (2, _) => {
                        let described = std::mem::take(&mut package);
                        let arch = described.arch.clone();
                        take(&arch, described.listed(address, is_signed));
                    }
                    _ => {}
                }
                depth = depth.saturating_sub(1);
            }
            Event::Eof if depth == 0 => return Ok(()),
            Event::Eof => return Err(broken(&"it breaks off")),
            _ => {}
        }
    }
}

impl Described {
    fn take_attributes(&mut self, element: &BytesStart<'_>) {
        let value = |name: &str| {
            let attribute = element.try_get_attribute(name).ok()??;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).ok()?;
            Some(value.into_owned())
        };
        match element.name().as_ref() {
            b"version" => {
                let [epoch, version, release] = ["epoch", "ver", "rel"].map(|name| value(name).unwrap_or_default());
                self.version = format!("{}:{version}-{release}", if epoch.is_empty() { "0" } else { &epoch });
            }
            b"size" => self.size = value("package").and_then(|size| size.parse().ok()),
            b"location" => {
                self.base = value("xml:base").and_then(|base| Url::parse(&base).ok());
                self.location = value("href");
            }
            _ => {}
        }
    }

    /// The package as a line of a repository's list.
    fn listed(mut self, repository: &Url, is_signed: bool) -> Listed {
        let id = (std::mem::take(&mut self.name), std::mem::take(&mut self.version));
        let source = self.source_of_all_builds().to_owned();
        let offer = self.offer(repository, is_signed);
        Listed { id, source, offer }
    }

    /// The source package, without what tells its builds apart.
    ///
    /// The Open Build Service, which SUSE uses, ends a release with the number of the build:
    /// `grep-3.11-2.14.src.rpm` and `grep-3.11-2.12.src.rpm` are of one source.
    fn source_of_all_builds(&self) -> &str {
        let source = ["src", "nosrc"]
            .iter()
            .find_map(|kind| self.source.strip_suffix(&format!(".{kind}.rpm")));
        let source = source.unwrap_or_default();
        let counts_builds = self.vendor.contains("SUSE") || self.vendor.starts_with("obs:");
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match source.rsplit_once('.') {
            Some((all, count)) if counts_builds && is_number(count) => all,
            _ => source,
        }
    }

    /// `None` when its description is incomplete, or has a digest of another kind.
    fn offer(self, repository: &Url, is_signed: bool) -> Option<Offer> {
        let address = within(self.base.as_ref().unwrap_or(repository), &self.location?)?;
        Some(Offer {
            address: address.into(),
            digest: PackageDigest::parse(&self.digest)?,
            size: self.size?,
            is_signed,
        })
    }
}

/// The address of a file in a repository. The query that every request must have is kept.
fn within(base: &Url, location: &str) -> Option<Url> {
    let mut address = base.clone();
    let mut path = base.path().trim_end_matches('/').to_owned();
    for part in location.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            return None;
        }
        path = format!("{path}/{part}");
    }
    address.set_path(&path);
    Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: &str = "51a0334f8daed0c3b84fef04c79f933f7500c047e4f48adfa18b648be89b9bc9";

    fn package(name: &str, arch: &str, location: &str) -> String {
        format!(
            "<package type=\"rpm\">\n  <name>{name}</name>\n  <arch>{arch}</arch>\n  \
             <version epoch=\"0\" ver=\"5.2\" rel=\"1\"/>\n  <checksum type=\"sha256\" pkgid=\"YES\">{SHA256}</checksum>\n  \
             <summary>A &amp; B</summary><size package=\"668582\" installed=\"1\"/>\n  <location {location}/>\n  \
             <format><rpm:provides><rpm:entry name=\"x\" ver=\"9\"/></rpm:provides><file>/usr/bin/{name}</file></format>\n</package>"
        )
    }

    #[test]
    fn packages_are_read() {
        let address = Url::parse("http://h/repo/?token=1").unwrap();
        let packages = [
            package("bash", "x86_64", "href=\"Packages/b/bash-5.2-1.x86_64.rpm\""),
            package("elsewhere", "x86_64", "xml:base=\"http://other/\" href=\"a.rpm\""),
            package("foreign", "aarch64", "href=\"a.rpm\""),
            package("outside", "x86_64", "href=\"../../a.rpm\""),
            "<package><name>odd</name><arch>x86_64</arch></package>".to_owned(),
        ];
        let text = format!(
            "<?xml version=\"1.0\"?>\n<metadata packages=\"4\">{}</metadata>",
            packages.concat()
        );
        let mut found = Vec::new();
        let take = |arch: &str, listed: Listed| found.push((arch.to_owned(), listed.id, listed.offer));
        read(text.as_bytes(), &address, true, take).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|(arch, (name, _), offer)| (&**arch, &**name, offer.is_some()))
            .collect();
        let expected = [
            ("x86_64", "bash", true),
            ("x86_64", "elsewhere", true),
            ("aarch64", "foreign", true),
            ("x86_64", "outside", false),
            ("x86_64", "odd", false),
        ];
        assert_eq!(names, expected);
        assert_eq!(found[0].1.1, "0:5.2-1");
        let bash = Offer {
            address: "http://h/repo/Packages/b/bash-5.2-1.x86_64.rpm?token=1".to_owned(),
            digest: PackageDigest::parse(SHA256).unwrap(),
            size: 668_582,
            is_signed: true,
        };
        assert_eq!(found[0].2, Some(bash));
        assert_eq!(found[1].2.as_ref().unwrap().address, "http://other/a.rpm");
    }

    #[test]
    fn the_number_of_a_build_is_no_part_of_its_source() {
        let source = |vendor: &str, source: &str| {
            let of = format!("<rpm:vendor>{vendor}</rpm:vendor><rpm:sourcerpm>{source}</rpm:sourcerpm>");
            let text = package("grep", "x86_64", "href=\"a.rpm\"").replace("<format>", &format!("<format>{of}"));
            let text = format!("<metadata>{text}</metadata>");
            let mut found = String::new();
            let address = Url::parse("http://h/").unwrap();
            read(text.as_bytes(), &address, false, |_, listed| found = listed.source).unwrap();
            found
        };
        for (vendor, srpm, of_all) in [
            ("openSUSE", "grep-3.11-2.14.src.rpm", "grep-3.11-2"),
            (
                "SUSE LLC &lt;https://www.suse.com/&gt;",
                "grep-3.1-150000.4.6.1.src.rpm",
                "grep-3.1-150000.4.6",
            ),
            (
                "obs://build.opensuse.org/home:me",
                "x-1-lp155.3.7.nosrc.rpm",
                "x-1-lp155.3",
            ),
            ("openSUSE", "grep-3.11-2.src.rpm", "grep-3.11-2"),
            ("openSUSE", "grep-3.11-2.el9.src.rpm", "grep-3.11-2.el9"),
            ("Fedora Project", "grep-3.11-2.1.src.rpm", "grep-3.11-2.1"),
            ("openSUSE", "", ""),
        ] {
            assert_eq!(source(vendor, srpm), of_all, "{vendor}: {srpm}");
        }
    }

    #[test]
    fn what_breaks_off_is_no_list() {
        let address = Url::parse("http://h/").unwrap();
        for text in ["<metadata><package>", "<metadata></package>", "<metadata"] {
            read(text.as_bytes(), &address, false, |_, _| {}).unwrap_err();
        }
    }
}
