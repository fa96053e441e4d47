#!/bin/busybox sh
# Process 1 of a tiny image: mounts the root file system and asks for a login, or fails as the kernel's parameters say.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod "$module"; done
case $($b cat /proc/cmdline) in
*tiny.do=panic*) exit 1 ;;
*tiny.do=off*) $b poweroff -f ;;
*tiny.do=run*)
    # The disk's own program, which may write.
    $b mount -t squashfs -o ro /dev/vda /mnt
    $b mount -t tmpfs -o size=90% layer /cd
    $b mkdir /cd/upper /cd/work
    $b mount -t overlay -o lowerdir=/mnt,upperdir=/cd/upper,workdir=/cd/work layer /mnt
    $b sh /mnt/run
    $b poweroff -f
    ;;
*tiny.do=wait*) $b printf 'waits for a friend'; $b sleep 1000 ;;
*tiny.do=shell*)
    $b printf '\033]0;evil title\007\033[31mmodprobe: FATAL: Module nfs not found in directory /lib\033[0m\r\n'
    $b printf 'You are in emergency mode.\n'
    $b sleep 1000
    ;;
esac
# A CD by the name of its volume, as dracut finds it.
case $($b cat /proc/cmdline) in
*root=live:CDLABEL=*)
    label=$($b sed 's/.*root=live:CDLABEL=\([^ ]*\).*/\1/' /proc/cmdline)
    for try in 1 2 3 4 5 6 7 8 9 10; do
        if device=$($b findfs "LABEL=$label"); then break; fi
        $b sleep 1
    done
    $b printf 'live CD on %s\n' "$device"
    $b mount -t iso9660 -o ro "$device" /cd && $b mount -t squashfs -o loop,ro /cd/LiveOS/rootfs /mnt
    ;;
esac
# The second partition of a disk image, or the whole disk.
for device in /dev/vda2 /dev/vda; do
    if [ ! -e /mnt/etc/issue ] && [ -e $device ] && $b mount -t squashfs -o ro $device /mnt; then break; fi
done
$b cat /mnt/etc/issue || $b echo 'ALERT! there is no root file system'
$b printf 'tiny login: '
$b sleep 1000
