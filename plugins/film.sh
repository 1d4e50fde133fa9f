#!/bin/sh
# Encodes numbered frames into a film with ffmpeg, and counts the frames of the film.
# film.sh WORKDIR SOURCE-DIR PREFIX DIGITS SUFFIX FRAMES FILM RATE FFMPEG-OPTION...
# FRAMES is an OpenJD range such as "-3-9:2,20". Options stand before the film's name.
# Why links: ffmpeg reads a sequence up to its first hole and exits 0, it knows no step and no negative numbers.
# Why -xerror: for a frame that it cannot read it shows the one before twice, exits 0, and the count is right.
set -eu
work=$1 source=$2 prefix=$3 digits=$4 suffix=$5 frames=$6 film=$7 rate=$8
shift 8
cd "$work"
mkdir sequence

refuse() {
    echo "openjd_fail: $1"
    exit 66
}

for program in ffmpeg ffprobe; do
    command -v "$program" >/dev/null || refuse "this node has no $program"
done

extension=${suffix##*.}
echo "$frames" | tr ',' '\n' | sed -E 's/^(-?[0-9]+)-(-?[0-9]+)(:([0-9]+))?$/\1 \2 \4/' >ranges
count=0
while read -r first last step; do
    number=$first
    while [ "$number" -le "${last:-$first}" ]; do
        case $number in
            -*) name=$(printf -- '-%0*d' "$digits" "${number#-}") ;;
            *) name=$(printf '%0*d' "$digits" "$number") ;;
        esac
        [ -s "$source/$prefix$name$suffix" ] || refuse "frame $number is missing: $source/$prefix$name$suffix"
        count=$((count + 1))
        ln -s "$source/$prefix$name$suffix" "sequence/$(printf '%07d' "$count").$extension"
        number=$((number + ${step:-1}))
    done
done <ranges

case $film in
    *.webm) codec="-c:v libvpx-vp9 -crf 24 -b:v 0 -row-mt 1 -pix_fmt yuv420p" ;;
    *.mkv) codec="-c:v ffv1 -level 3" ;;
    *) codec="-c:v libx264 -crf 18 -preset medium -pix_fmt yuv420p -movflags +faststart" ;;
esac
case $film in
    *.mkv) even="" ;;
    *) even="-vf pad=ceil(iw/2)*2:ceil(ih/2)*2" ;; # the other codecs halve the colours' size
esac
case $extension in
    exr | EXR) light="-apply_trc iec61966_2_1" ;; # linear light, as a screen shows it
    *) light="" ;;
esac

# The status of ffmpeg, not that of the reader behind it.
# shellcheck disable=SC2086
{
    ffmpeg -hide_banner -nostdin -y -xerror -loglevel warning -nostats -progress pipe:1 \
        $light -err_detect explode -framerate "$rate" -start_number 1 -i "sequence/%07d.$extension" \
        $codec $even "$@" "$film" </dev/null || echo "$?" >failed
} | while IFS='=' read -r key value; do
    if [ "$key" = frame ] && [ "$value" -le "$count" ]; then
        echo "openjd_progress: $((value * 100 / count))"
    fi
done
[ ! -e failed ] || refuse "ffmpeg ended with status $(cat failed)"

found=$(ffprobe -v error -count_frames -select_streams v:0 -show_entries stream=nb_read_frames -of csv=p=0 \
    "$film" | tr -d ',[:space:]')
[ "$found" = "$count" ] || refuse "the film holds ${found:-no} frames, not $count: a frame cannot be read"
echo "openjd_status: $count frames at $rate a second"
