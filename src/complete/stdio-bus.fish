# Completions of stdio-bus for fish. The program itself says what can follow.

function __stdio_bus_complete
    set -l current (commandline --current-token --cut-at-cursor)
    set -l typed (commandline --tokenize --current-process --cut-at-cursor) "$current"
    set -l answer (command stdio-bus internal-complete -- $typed 2>/dev/null)
    switch "$answer[1]"
        case files
            __fish_complete_path "$current"
        case dirs
            __fish_complete_directories "$current"
        case words
            set --erase answer[1]
            test (count $answer) -gt 0; and printf '%s\n' $answer
    end
end

complete --command stdio-bus --no-files --keep-order --arguments '(__stdio_bus_complete)'
