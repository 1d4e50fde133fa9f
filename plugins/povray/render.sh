#!/bin/sh
# Renders frames one by one with POV-Ray and gives each file its name.
# render.sh WORKDIR SCENE OUTDIR PREFIX DIGITS SUFFIX CHUNK POVRAY-OPTION...
# PREFIX, DIGITS and SUFFIX make the file name: "shot_", 4, ".png". DIGITS 0: no number.
# CHUNK is an OpenJD range such as "1-9:2,20"; empty: one still, without animation options.
# Why: POV-Ray cannot open paths with letters beyond ASCII, splits them at blanks, and chooses the number of digits
# itself. So it sees two links and a plain name, and the file is renamed in its own directory.
set -eu
cd "$1"
ln -s "$2" scene.pov
ln -s "$(dirname -- "$2")" scene-directory
ln -s "$3" output
output=$3 prefix=$4 digits=$5 suffix=$6 chunk=$7
shift 7

render() {  # FRAME-TEXT POVRAY-OPTION...
    frame=$1
    shift
    name=$prefix
    if [ "$digits" -gt 0 ]; then
        name=$name$(printf '%0*d' "$digits" "$frame")
    fi
    name=$name$suffix
    echo "ridgeline| frame $index of $count: ${frame:-still}"
    povray +Iscene.pov +Lscene-directory +Ooutput/ridgeline-part -D "$@"
    for part in "$output"/ridgeline-part*; do
        if [ ! -s "$part" ]; then
            echo "ridgeline| error POV-Ray did not write $name (is the disk full?)"
            exit 66
        fi
        mv -- "$part" "$output/$name"
    done
    echo "ridgeline| saved $index of $count: $name"
}

# POV-Ray renders no frame outside +KFI..+KFF. One that was appended to a job later goes on where the clock has
# come to: the job's ends are moved to the frame, and the clock's as far.
beyond() {  # FRAME-NUMBER POVRAY-OPTION...
    frame=$1 first="" last=""
    shift
    for option do
        case $option in
            +KFI*) first=${option#+KFI} ;;
            +KFF*) last=${option#+KFF} ;;
        esac
    done
    [ "${first:-0}" -lt "${last:-0}" ] || return 0
    clock=$(awk "BEGIN { printf \"%.9f\", ($frame - $first) / ($last - $first) }")
    if [ "$frame" -gt "$last" ]; then
        echo "+KFF$frame +KF$clock"
    elif [ "$frame" -lt "$first" ]; then
        echo "+KFI$frame +KI$clock"
    fi
}

if [ -z "$chunk" ]; then
    index=1 count=1
    render "" "$@"
    exit 0
fi
frames=$(echo "$chunk" | tr ',' '\n' | while IFS=: read -r range step; do
    seq "${range%-*}" "${step:-1}" "${range#*-}"
done)
index=0 count=$(echo "$frames" | wc -l)
for number in $frames; do
    index=$((index + 1))
    # shellcheck disable=SC2046 # two options, without blanks
    render "$number" "+SF$number" "+EF$number" "$@" $(beyond "$number" "$@")
done
