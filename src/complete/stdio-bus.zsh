#compdef stdio-bus
# Completions of stdio-bus for zsh. The program itself says what can follow.

_stdio-bus() {
    local -a typed answer names
    local line name about
    typed=("${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}")
    answer=("${(@f)$(command stdio-bus internal-complete -- "${typed[@]}" 2> /dev/null)}")
    case "$answer[1]" in
        files) _files ;;
        dirs) _files -/ ;;
        words)
            for line in "${(@)answer[2,-1]}"; do
                name="${line%%$'\t'*}"
                about="${line#*$'\t'}"
                names+=("${name//:/\\:}${about:+:$about}")
            done
            _describe -V stdio-bus names
            ;;
    esac
}

if [[ "$funcstack[1]" == _stdio-bus ]]; then
    _stdio-bus "$@"
else
    compdef _stdio-bus stdio-bus
fi
