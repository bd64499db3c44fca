#!/usr/bin/env bash
# Runs a command as root in a virtual machine whose cgroup v2 hierarchy has all controllers.
#
#   bench/trust/vm.sh COMMAND...
#
# For machines on which version 1 holds the controllers: limits on the host (--mem, --cpus, --pids) cannot be tried there.
# The virtual machine sees the file system of this one, read-only; what it writes stays in its memory and is gone with it.
# Its exit status is the command's. Needs qemu-system-x86, busybox-static, cpio and root; the kernel is Debian's, fetched
# once by apt-get and not installed. VM_MEMORY_MIB and VM_CPUS set its size; VM_ACCEL=kvm makes
# it faster where that works.
set -euo pipefail
(($#)) || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
for tool in qemu-system-x86_64 busybox cpio apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || {
        echo "vm.sh: no $tool (apt-get install qemu-system-x86 busybox-static cpio)" >&2
        exit 2
    }
done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/carma-vm
if [[ ! -e $cache/kernel ]]; then
    rm -rf "$cache" && mkdir -p "$cache"
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')
    (cd "$cache" && apt-get download -q "$package" >&2 && dpkg-deb -x "$package"_*.deb unpacked && rm ./*.deb)
    mv "$cache"/unpacked/boot/vmlinuz-* "$cache/kernel"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The modules that its root file system needs, each after what it depends on.
mkdir -p "$work"/root/{bin,dev,lower,modules,new,proc,sys,upper}
at=0
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p \
    overlay fuse; do
    found=$(find "$cache/unpacked/lib/modules" -name "$module.ko*" -print -quit)
    # Built into the kernel, or none of this version's.
    [[ -n $found ]] || continue
    at=$((at + 1))
    cp "$found" "$work/root/modules/$(printf %02d $at)-$module.ko"
done
cp "$(command -v busybox)" "$work/root/bin/busybox"
{
    printf 'cd %q\n' "$PWD"
    printf 'export PATH=%q HOME=%q\n' "$PATH" "$HOME"
    printf 'exec'
    printf ' %q' "$@"
    echo
} >"$work/root/command"
cat >"$work/root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module" || echo "vm: $module is not taken"; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 root /lower
mount -t tmpfs -o size=75% memory /upper
mkdir /upper/changed /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changed,workdir=/upper/work root /new
for dir in proc sys dev; do mount --move /$dir /new/$dir; done
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs run /new/run
mount -t tmpfs tmp /new/tmp
chmod 1777 /new/tmp /new/dev/shm
mount -t cgroup2 none /new/sys/fs/cgroup
cp /command /new/run/vm-command
ip link set lo up
hostname carma-vm
chroot /new setsid -c bash /run/vm-command
status=$?
sync
printf "\\x$(printf %x $status)" | dd of=/new/dev/port bs=1 seek=244 2>/dev/null
poweroff -f
INIT
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initrd"
status=0
qemu-system-x86_64 -machine q35 -accel "${VM_ACCEL:-tcg}" -cpu max -smp "${VM_CPUS:-2}" -m "${VM_MEMORY_MIB:-4096}" \
    -nodefaults -no-reboot -display none -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=1 \
    -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
    -kernel "$cache/kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 oops=panic" </dev/null || status=$?
# The device exits with twice the number and one more; even means that the virtual machine never came to it.
((status % 2)) || { echo "vm.sh: the virtual machine ended before the command did" >&2; exit 70; }
exit $((status / 2))
