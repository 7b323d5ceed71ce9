# Completions of stdio-bus for bash. The program itself says what can follow.

_stdio_bus() {
    local rest="${COMP_LINE:0:COMP_POINT}" word last=-1 i line kind cut
    local -a words=()
    # Bash also splits words at "=" and ":". They are put together again, as they were typed up to the cursor.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [[ $i -eq 0 || "$rest" == [[:space:]]* ]]; then
            rest="${rest#"${rest%%[![:space:]]*}"}"
            last=$((last + 1))
        fi
        if [[ $i -eq $COMP_CWORD ]]; then
            word="$rest"
        fi
        words[last]="${words[last]-}$word"
        rest="${rest#"$word"}"
    done
    # Of such a word, bash replaces only what follows the last "=" or ":".
    word="${words[last]}"
    cut=""
    if [[ "$COMP_WORDBREAKS" == *=* && "$word" == *=* ]]; then
        cut="${word%"${word##*=}"}"
    fi
    if [[ "$COMP_WORDBREAKS" == *:* && "${word#"$cut"}" == *:* ]]; then
        cut="${word%"${word##*:}"}"
    fi
    COMPREPLY=()
    while IFS= read -r line; do
        case "${kind-}" in
            "") kind="$line" ;;
            words)
                # A name may be anything. It is quoted, so that it is never run.
                line="${line%%$'\t'*}"
                printf -v line %q "${line#"$cut"}"
                COMPREPLY+=("$line")
                ;;
        esac
    done < <(command stdio-bus internal-complete -- "${words[@]}" 2> /dev/null)
    case "${kind-}" in
        files) compopt -o default 2> /dev/null || COMPREPLY=($(compgen -f -- "$2")) ;;
        dirs) compopt -o dirnames 2> /dev/null || COMPREPLY=($(compgen -d -- "$2")) ;;
    esac
}

complete -o nosort -F _stdio_bus stdio-bus 2> /dev/null || complete -F _stdio_bus stdio-bus
