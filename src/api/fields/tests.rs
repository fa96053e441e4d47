//! Tests of IMS's rules for values.

use kiln_records::{Link, TemplateValue, arch::Arch};
use uuid::Uuid;

use super::*;

#[test]
fn booleans_are_those_of_ims() {
    for value in [
        json!(true),
        json!(1),
        json!("1"),
        json!("t"),
        json!("on"),
        json!("Yes"),
        json!("YES"),
        json!("Y"),
    ] {
        assert_eq!(bool::read(&value), Ok(true), "{value}");
    }
    for value in [
        json!(false),
        json!(0),
        json!("0"),
        json!("F"),
        json!("off"),
        json!("no"),
        json!("NO"),
        json!("n"),
    ] {
        assert_eq!(bool::read(&value), Ok(false), "{value}");
    }
    for value in [
        json!(2),
        json!("tRuE"),
        json!(""),
        json!([]),
        json!(null),
        json!("2"),
        json!(" true"),
    ] {
        assert!(bool::read(&value).is_err(), "{value}");
    }
}

#[test]
fn sizes_are_cut_and_bounded() {
    assert_eq!(Gib::read(&json!(1.7)), Ok(1));
    assert_eq!(Gib::read(&json!(" 7 ")), Ok(7));
    assert_eq!(Gib::read(&json!("+7")), Ok(7));
    for value in [
        json!("1.7"),
        json!("0x10"),
        json!(true),
        json!(null),
        json!(0),
        json!(-3),
        json!(1e300),
        json!([]),
    ] {
        assert!(Gib::read(&value).is_err(), "{value}");
    }
    assert_eq!(
        Gib::read(&json!(18_446_744_073_709_551_615_u64)),
        Err(error("Must be less than or equal to 1048576."))
    );
}

#[test]
fn every_spelling_of_a_uuid_is_one() {
    let plain: Uuid = "dc0b4bd2-7e8f-4f5e-9d2f-0a3b9bb0a7c1".parse().unwrap();
    for text in [
        "dc0b4bd2-7e8f-4f5e-9d2f-0a3b9bb0a7c1",
        "DC0B4BD27E8F4F5E9D2F0A3B9BB0A7C1",
        "{dc0b4bd2-7e8f-4f5e-9d2f-0a3b9bb0a7c1}",
        "urn:uuid:dc0b4bd2-7e8f-4f5e-9d2f-0a3b9bb0a7c1",
    ] {
        assert_eq!(Uuid::read(&json!(text)), Ok(plain), "{text}");
    }
    for value in [
        json!("x"),
        json!(""),
        json!(7),
        json!("dc0b4bd2-7e8f-4f5e-9d2f-0a3b9bb0a7c1a"),
    ] {
        assert!(Uuid::read(&value).is_err(), "{value}");
    }
}

body! {
    /// A body.
    struct Given {
        name: Name,
        arch: Arch,
        link: Option<Link>,
        list: Option<List<TemplateValue>>,
        group: Flatten<Group>,
    }
}

members! {
    /// Members that a body has besides.
    struct Group {
        /// A size.
        size: Nullable<Gib>,
        /// A file.
        file: OrEmpty<FileName>,
        /// Whether.
        jail: OrDefault<bool>,
    }
}

#[test]
fn a_body_is_what_its_members_are_read_as() {
    let given: Given = read(json!({
        "name": "n", "arch": "s390x", "link": {"path": "s3://boot/a", "type": "s3"},
        "list": [{"key": "a", "value": "b"}], "size": "7", "file": "vmlinuz", "jail": "on",
    }))
    .unwrap();
    assert_eq!((given.name.as_str(), given.arch), ("n", Arch::S390x));
    assert_eq!(given.link, Some(Link::s3("boot", "a", "")));
    assert_eq!(given.list.unwrap()[0].value, "b");
    let group = given.group;
    assert_eq!((group.size, group.jail), (Some(Some(7)), true));
    assert_eq!(group.file.as_deref(), Some("vmlinuz"));

    let group = |members: Value| {
        let mut body = json!({"name": "n", "arch": "s390x"});
        body.as_object_mut()
            .unwrap()
            .append(&mut members.as_object().unwrap().clone());
        read::<Given>(body).map(|given| given.group)
    };
    let absent = group(json!({})).unwrap();
    assert_eq!((absent.size, absent.file, absent.jail), (None, None, false));
    let unsaid = group(json!({"size": null, "file": ""})).unwrap();
    assert_eq!((unsaid.size, unsaid.file), (Some(None), None));
    assert!(group(json!({"file": null})).is_err() && group(json!({"jail": null})).is_err());
}

#[test]
fn a_body_is_described_as_it_is_read() {
    let described = serde_json::to_value(<Given as utoipa::PartialSchema>::schema()).unwrap();
    assert_eq!(described["required"], json!(["name", "arch"]));
    assert_eq!(described["additionalProperties"], json!(false));
    let members = &described["properties"];
    assert_eq!(members["link"]["$ref"], "#/components/schemas/Link");
    assert_eq!(members["size"]["oneOf"][1], json!({"type": "null"}));
    assert_eq!(members["jail"]["description"], "Whether.");
    let empty = members["file"]["pattern"].as_str().unwrap();
    assert!(
        empty.ends_with(")?$") && members["file"].get("minLength").is_none(),
        "{empty}"
    );
    let mut components = Components::new();
    <Given as Field>::components(&mut components);
    let mut names: Vec<_> = components.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["Arch", "Boolean", "Given", "Link", "Size", "StoreType", "TemplateValue"]
    );
}

#[test]
fn every_error_is_reported_at_its_place() {
    let body = json!({
        "name": 7, "link": {"path": "", "colour": 1}, "list": [{"key": "a", "value": "b"}, {"key": 1}], "odd": 1,
    });
    insta::assert_json_snapshot!(read::<Given>(body).unwrap_err().errors, @r#"
    {
      "arch": [
        "Missing data for required field."
      ],
      "link": {
        "colour": [
          "Unknown field."
        ],
        "path": [
          "Shorter than minimum length 1."
        ],
        "type": [
          "Missing data for required field."
        ]
      },
      "list": {
        "1": {
          "key": [
            "Not a valid string."
          ],
          "value": [
            "Missing data for required field."
          ]
        }
      },
      "name": [
        "Not a valid string."
      ],
      "odd": [
        "Unknown field."
      ]
    }
    "#);
}

#[test]
fn a_body_has_to_be_an_object() {
    let problem = read::<Given>(json!([1])).unwrap_err();
    assert_eq!(problem.errors.unwrap()["_schema"], json!(["Invalid input type."]));
}

#[test]
fn a_whole_number_may_be_written_as_a_float() {
    for (value, number) in [
        (json!(7), 7),
        (json!(7.0), 7),
        (json!(0.0), 0),
        (json!(4_294_967_295.0), u32::MAX),
    ] {
        assert_eq!(u32::read(&value), Ok(number), "{value}");
    }
    for value in [
        json!(7.5),
        json!(-1),
        json!(-1.0),
        json!(4_294_967_296.0),
        json!(1e300),
        json!("7"),
        json!(null),
    ] {
        assert!(u32::read(&value).is_err(), "{value}");
    }
}
