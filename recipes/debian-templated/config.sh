#!/bin/bash
set -euo pipefail
echo "{{ hostname | default('node') }}" > /etc/hostname
{%- for package in (extra_packages | default('')).split(',') if package %}
dpkg-query -W -f '${Package} ${Version}\n' {{ package }}
{%- endfor %}
apt-get clean
rm -rf /var/lib/apt/lists/*
