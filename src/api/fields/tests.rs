//! What IMS takes for what.

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
        assert_eq!(boolean(&value), Ok(true), "{value}");
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
        assert_eq!(boolean(&value), Ok(false), "{value}");
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
        assert!(boolean(&value).is_err(), "{value}");
    }
}

#[test]
fn sizes_are_cut_and_bounded() {
    assert_eq!(size(&json!(1.7)), Ok(1));
    assert_eq!(size(&json!(" 7 ")), Ok(7));
    assert_eq!(size(&json!("+7")), Ok(7));
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
        assert!(size(&value).is_err(), "{value}");
    }
    assert_eq!(
        size(&json!(18_446_744_073_709_551_615_u64)),
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
        assert_eq!(uuid(&json!(text)), Ok(plain), "{text}");
    }
    for value in [
        json!("x"),
        json!(""),
        json!(7),
        json!("dc0b4bd2-7e8f-4f5e-9d2f-0a3b9bb0a7c1a"),
    ] {
        assert!(uuid(&value).is_err(), "{value}");
    }
}

#[test]
fn every_error_is_reported_at_its_place() {
    let mut fields = Fields::of(json!({
        "name": 7, "link": {"path": "", "colour": 1}, "list": [{"key": "a", "value": "b"}, {"key": 1}], "odd": 1,
    }))
    .unwrap();
    let _ = fields.required("name", name);
    let _ = fields.required("arch", arch);
    let _ = fields.optional("link", link);
    let _ = fields.optional("list", template_dictionary);
    insta::assert_json_snapshot!(fields.finish().unwrap_err().errors, @r#"
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
    let problem = Fields::of(json!([1])).unwrap_err();
    assert_eq!(problem.errors.unwrap()["_schema"], json!(["Invalid input type."]));
}
