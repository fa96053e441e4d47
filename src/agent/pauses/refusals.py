"""What kiwi refuses of a description: its reasons become a part of its message, and what it finds wrong with images that Kiln does not
make of a root is a warning. For kiwi.py.
"""
from kiwi.exceptions import KiwiDescriptionInvalid, KiwiError
from kiwi.runtime_checker import RuntimeChecker
from kiwi.xml_description import XMLDescription

from kiln_warnings import warn

# The most reasons in a message.
MOST = 3

# libxml's errors that only say that another one is somewhere inside.
GENERAL = ("RELAXNG_ERR_INTEREXTRA", "RELAXNG_ERR_INTERSEQ", "RELAXNG_ERR_INTERNODATA", "RELAXNG_ERR_CONTENTVALID")

# kiwi's checks of what makes a disk, a live image or a container of a root, and of the tools for that.
OF_OTHER_IMAGES = (
    "check_initrd_selection_required",
    "check_boot_description_exists",
    "check_consistent_kernel_in_boot_and_system_image",
    "check_container_tool_chain_installed",
    "check_volume_setup_defines_reserved_labels",
    "check_volume_setup_defines_multiple_fullsize_volumes",
    "check_volume_setup_has_no_root_definition",
    "check_volume_label_used_with_lvm",
    "check_swap_name_used_with_lvm",
    "check_mediacheck_installed",
    "check_checkmedia_used_with_msdos_table",
    "check_dracut_module_for_live_iso_in_package_list",
    "check_dracut_module_for_disk_overlay_in_package_list",
    "check_dracut_module_for_disk_oem_in_package_list",
    "check_dracut_module_for_oem_install_in_package_list",
    "check_appx_naming_conventions_valid",
    "check_luksformat_options_valid",
    "check_partuuid_persistency_type_used_with_mbr",
    "check_efi_fat_image_has_correct_size",
    "check_bootloader_env_compatible_with_loader",
)

load = XMLDescription.load
by_schema, by_rules = XMLDescription._get_relaxng_validation_details, XMLDescription._get_schematron_validation_details
reasons = []


def keep(texts):
    reasons.extend(text for text in dict.fromkeys(" ".join(text.split()) for text in texts) if text)


def keep_errors_of_schema(schema, description, log):
    entries = [(entry.type_name, entry.message) for entry in log]
    keep([message for name, message in entries if name not in GENERAL] or [message for _, message in entries])
    by_schema(schema, description, log)


def keep_errors_of_rules(report):
    spaces = report.getroot().nsmap
    keep(found.text or "" for found in report.xpath("//svrl:failed-assert/svrl:text", namespaces=spaces))
    by_rules(report)


def load_or_explain(self):
    reasons.clear()
    try:
        return load(self)
    except KiwiDescriptionInvalid as error:
        if not reasons:
            raise
        raise KiwiDescriptionInvalid("; ".join(reasons[:MOST])) from error


def warning(check):
    def checked(*arguments):
        try:
            check(*arguments)
        except KiwiError as error:
            # The first paragraph says what is wrong, and the others what could be done.
            text = " ".join(str(error).strip().split("\n\n")[0].split())
            warn("image_type_not_made", f"Kiln makes no such image of the root, so kiwi goes on: {text}")

    return checked


def install():
    XMLDescription._get_relaxng_validation_details = staticmethod(keep_errors_of_schema)
    XMLDescription._get_schematron_validation_details = staticmethod(keep_errors_of_rules)
    XMLDescription.load = load_or_explain
    for name in OF_OTHER_IMAGES:
        setattr(RuntimeChecker, name, warning(getattr(RuntimeChecker, name)))
