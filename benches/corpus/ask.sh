#!/bin/bash
# Runs in the new root, as its config.sh: starts what the packages brought, so that the answers are in the tree that is
# compared. Each question is asked of the programs that are there.
set -uo pipefail
mkdir -p /corpus
ask() {
    local name=$1
    shift
    command -v "$1" >/dev/null || return 0
    # A program that fails does so under plain emulation, too.
    { "$@" </dev/null 2>&1; echo "exit $?"; } >"/corpus/$name" || true
}
with() { # A question with an input.
    local name=$1 input=$2
    shift 2
    command -v "$1" >/dev/null || return 0
    { printf '%s' "$input" | "$@" 2>&1; echo "exit $?"; } >"/corpus/$name" || true
}

ask printf bash -c 'printf "%.3f %a\n" 1.1 0.1'
with sort $'1.00000000000000001\n1\n3e-400\n0\n' sort -gu
ask sqlite sqlite3 :memory: "select 1.1*3, cast('1.7976931348623157e308' as real), round(2.675, 2), 1e23; select * from pragma_compile_options"
ask postgres bash -c 'ls /usr/lib/postgresql/*/bin; /usr/lib/postgresql/*/bin/pg_config'
ask mariadb mariadb --version
ask mariadb-config mariadb_config
ask redis redis-server --version
ask php php -r 'echo php_uname("m"), " ", PHP_INT_SIZE, " ", 0.1 + 0.2, " ", sqrt(2), " ", pow(1.1, 1.3), "\n";'
ask php-floats php -r 'var_dump(0.1 + 0.2, round(2.675, 2), exp(1), log(3), fmod(7.1, 0.3)); echo json_encode([1e23, M_PI]), bin2hex(pack("d", 1.1)), "\n";'
ask nginx nginx -V
ask apache apache2ctl -V
ask lighttpd lighttpd -V
ask mpicc mpicc -show
ask ompi ompi_info --parsable --path all
ask hwloc lstopo-no-graphics --version
ask dot bash -c 'echo "digraph { a -> b -> c; a -> c }" | dot -Tsvg'
ask convert convert -size 40x40 gradient: -blur 0x3 -resize 50% txt:-
ask convert-delegates convert -list configure
ask gs gs -q -dBATCH -dNOPAUSE -sDEVICE=nullpage -c '1.1 sqrt == 2 0.3 exp == 10 ln =='
ask rsvg bash -c 'echo "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\"><circle r=\"4\" cx=\"4\" cy=\"4\"/></svg>" | rsvg-convert | sha256sum'
ask fc-list bash -c 'fc-list | sort'
ask gnuplot gnuplot -e 'set print "-"; print 1.1**1.3, erf(0.3), gamma(2.5), besj0(1.5)'
ask java java -XshowSettings:properties -version
ask ruby ruby -e 'require "json"; require "digest"; p RUBY_PLATFORM, Math.cbrt(3), Math.erf(0.3), 1.1**1.3, JSON.generate([1e23, 0.1]), Digest::SHA256.hexdigest("x")'
ask node node -e 'console.log(process.arch, Math.cbrt(3), Math.exp(1.1), 0.1 + 0.2, process.config.variables.host_arch)'
ask tcl tclsh8.6 /dev/stdin
with tcl-in 'puts [expr {1.1**1.3}]; puts $tcl_platform(machine); puts [expr {hypot(3.1,4.2)}]' tclsh8.6
ask lua lua5.4 -e 'print(1.1^1.3, math.exp(1.1), 7.1 % 0.3, string.format("%a", 0.1))'
ask erl erl -noshell -eval 'io:format("~p ~p~n", [erlang:system_info(system_architecture), math:pow(1.1,1.3)]), halt().'
ask perl perl -MPOSIX -e 'printf "%.17g %.17g %s\n", 1.1**1.3, cbrt(3), unpack("H*", pack("D", 1.1))'
ask perl-xml perl -e 'eval { require XML::LibXML; print XML::LibXML->new->parse_string("<a>1.1</a>")->findvalue("number(/a) * 3"), "\n" } or print $@'
ask perl-json perl -e 'eval { require JSON::XS; print JSON::XS->new->canonical->encode({ a => 1.1, b => [1e23] }), "\n" } or print $@'
ask perl-config perl -V
ask xmllint bash -c 'echo "<a>1.1</a>" | xmllint --xpath "number(/a) * 3" -'
ask python python3 -c 'import math, platform, sys; print(platform.machine(), math.erf(0.3), math.cbrt(3), (1.1 + 2j) ** 1.7, sys.float_info)'
ask python-config python3 -c 'import sysconfig; print(sorted(sysconfig.get_config_vars().items()))'
ask numpy python3 -c 'import numpy as n; a = n.arange(100.).reshape(10, 10); print(n.linalg.eigvalsh(a @ a.T), n.exp(a).sum(), n.finfo(n.longdouble))'
ask lxml python3 -c 'import lxml.etree as e; print(e.fromstring("<a>1.1</a>").xpath("number(/a) * 3"))'
with python-reads $'first\nsecond\n' python3 -c 'import sys; print(sys.stdin.readline()); import numpy; print(sys.stdin.readline())'
ask pdftex bash -c 'cd /corpus && echo "\\relax \\number\\dimexpr 1.1pt*3/7 \\bye" > t.tex && SOURCE_DATE_EPOCH=1 pdftex -interaction=batchmode t.tex; ls'
ask lsinitrd bash -c 'for f in /boot/initrd*; do lsinitramfs -l "$f" | awk "{ print \$1, \$3, \$4, \$NF }"; done'
ask mke2fs bash -c 'truncate -s 8M /corpus/fs && mke2fs -q -U 8f4b4a4e-0000-4000-8000-000000000001 -E hash_seed=8f4b4a4e-0000-4000-8000-000000000002 /corpus/fs; dumpe2fs -h /corpus/fs | grep -i -E "hash|flags"; rm /corpus/fs'
ask sestatus sestatus
ask sudo sudo -V
ask gcc bash -c 'echo "int main(void){return (char)-1 < 0;}" > /corpus/m.c; gcc -O2 -o /corpus/m /corpus/m.c; /corpus/m; echo $?; gcc -v; gcc -dM -E - < /dev/null | sort'
ask slurm slurmd -C
ask sinfo sinfo --version
ask ksh ksh -c 'echo $((1.1**1.3)) $((sqrt(2))); printf "%a\n" 0.1'
ask zsh zsh -c 'echo $((1.1**1.3)); zmodload zsh/mathfunc; echo $((cbrt(3)))'
ask awk gawk 'BEGIN { print 1.1^1.3, exp(1.1), sin(1e22), ENVIRON["HOSTTYPE"] }'
ask mawk mawk 'BEGIN { print 1.1^1.3, exp(1.1), sin(1e22) }'
with jq '[1.1, 3.0, 1e1000, 100000000000000000000]' jq -c '.[0] * .[1], (.[0] | cbrt), (.[0] | gamma), .[2], .[3]'
ask bc bash -c 'echo "scale=40; e(1.1); s(2)" | bc -l'
ask git git version --build-options
ask vim vim --version
ask R R --vanilla --slave -e 'cat(1.1^1.3, gamma(2.5), .Machine$double.eps, .Machine$sizeof.longdouble, R.version$platform, sum(c(0.1,0.2,0.3)), "\n"); print(solve(matrix(c(2,1,1,3),2)))'
ask podman podman --version
ask cpuinfo bash -c 'grep -c . /proc/cpuinfo; cat /proc/self/../cpuinfo | head -3; uname -m; arch; getconf LONG_BIT'
ask locale bash -c 'locale -a; localedef --list-archive'
ask gsettings gsettings list-schemas
ask systemd-path systemd-path
ask iptables iptables --version
ask postconf postconf -d
ask doveconf doveconf -n
ask spam bash -c 'echo "Subject: win money now" | spamassassin -L -t | grep -v -i -E "date|received"'
ask exim exim -bV
ask named named -V
ask unbound unbound -V
ask dnsmasq dnsmasq --version
ask snmpd snmpd --version
ask collectd collectd -h
ask sadf sadf -V
ask load bash -c '/usr/lib/nagios/plugins/check_users --version; /usr/lib/nagios/plugins/check_disk -w 0 -c 0 -p /'
ask aide aide --version
ask locate plocate --version
ask emacs emacs --batch --eval '(progn (princ system-configuration) (princ (format " %S %S %S" (expt 1.1 1.3) (/ 0.0 0.0) (sqrt 2))))'
with aspell $'teh quick brwon fox\n' aspell list -l en
with ispell $'teh quick brwon fox\n' ispell -l
with troff $'.TH X 1\n.SH NAME\nx\n' groff -man -Tascii
ask groff bash -c 'echo "x" | groff -Tps | sed "/CreationDate/d" | sha256sum'
ask scipy python3 -c 'import scipy.special as s, scipy.linalg as l, numpy as n; print(s.gamma(2.5), s.erf(0.3), s.jv(0, 1.5), l.expm(n.eye(3)))'
ask pandas python3 -c 'import pandas as p; print(p.DataFrame({"a": [1.1, 2.2, 3.3]}).describe().to_json(), p.read_csv(__import__("io").StringIO("x\n1e23\n0.1\n")).x.tolist())'
ask octave octave-cli --no-history --eval 'printf("%.17g %.17g %.17g\n", 1.1^1.3, gamma(2.5), det(magic(4))); disp(computer()); disp(eig([2 1; 1 3]))'
ask gp bash -c 'echo "1.1^1.3; gamma(2.5); factor(2^67-1)" | gp -q'
ask units units -t '3.3 miles' 'furlongs'
ask gsl gsl-randist 1 5 gaussian 1.5
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
