# Claude, kept open: what it does for a prompt depends on a word in it. What it is told is kept in $HOME/stdin, line by line.
echo $$ >> $HOME/pids; echo "$@" >> $HOME/args
sid=0a0a0a0a-59e7-4350-8eaf-4835821efe65
say() { printf '%s\n' "$1"; }
field() { printf '%s' "$line" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }
ok() { say "{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"$(field request_id)\",\"response\":$1}}"; }
text() { say "{\"type\":\"assistant\",\"message\":{\"id\":\"m$n\",\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]}}"; }
result() { say "{\"type\":\"result\",\"subtype\":\"$1\",\"session_id\":\"$sid\",\"terminal_reason\":\"$2\",\"usage\":{\"input_tokens\":10,\"output_tokens\":5},\"total_cost_usd\":0.01}"; }
call() { say "{\"type\":\"assistant\",\"message\":{\"id\":\"c$n\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t$n\",\"name\":\"Bash\",\"input\":{\"command\":\"wait\"}}]}}"; }
next() { IFS= read -r line || exit 0; printf '%s\n' "$line" >> $HOME/stdin; }
case "$*" in *--resume*) [ -e $HOME/lost ] && {
  say '{"type":"result","subtype":"error_during_execution","is_error":true,"session_id":"stale","errors":["No conversation found with session ID"]}'; exit 1; } ;; esac
n=0
while next; do
  n=$((n+1))
  case "$line" in
    *'"subtype":"initialize"'*)
      ok '{"commands":[{"name":"plan","description":"Makes a plan","argumentHint":"[what]"}],"models":[{"value":"default"},{"value":"big","displayName":"Big"}]}' ;;
    *'"mode":"bypassPermissions"'*)
      say "{\"type\":\"control_response\",\"response\":{\"subtype\":\"error\",\"request_id\":\"$(field request_id)\",\"error\":\"not launched so\"}}" ;;
    *'"subtype":"set_'*) ok '{}' ;;
    *'"type":"user"'*)
      [ -e $HOME/dying ] && { rm $HOME/dying; exit 9; }
      say "{\"type\":\"command_lifecycle\",\"command_uuid\":\"$(field uuid)\",\"state\":\"queued\"}"
      case "$line" in *BACKGROUND*) text old; result success done ;; esac
      say "{\"type\":\"command_lifecycle\",\"command_uuid\":\"$(field uuid)\",\"state\":\"started\"}"
      say "{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"$sid\",\"slash_commands\":[\"plan\",\"other\"]}"
      case "$line" in
        *GARBAGE*) say 'no json'; say '{"type":"never seen"}'; say '[7]'; say ''; text "turn $n"; result success done ;;
        *ASK*)
          call
          say "{\"type\":\"control_request\",\"request_id\":\"r$n\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"Bash\",\"input\":{\"command\":\"wait\"},\"tool_use_id\":\"t$n\",\"permission_suggestions\":[{\"type\":\"setMode\"}]}}"
          next
          case "$line" in
            *'"subtype":"interrupt"'*) ok '{"still_queued":[]}'; result error_during_execution aborted_tools ;;
            *) text "decided"; result success done ;;
          esac ;;
        *WAIT*)
          call; next
          while ! printf '%s' "$line" | grep -q interrupt; do ok '{}'; text "tuned"; next; done
          ok '{"still_queued":[]}'; result error_during_execution aborted_tools ;;
        *DEAF*)
          trap '' INT TERM
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" &
          while [ ! -s $HOME/tool ]; do :; done
          call; while :; do sleep 60; done ;;
        *SPAWN*)
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" > /dev/null 2>&1 &
          while [ ! -s $HOME/tool ]; do :; done
          text "turn $n"; result success done ;;
        *AGREED*) say '{"type":"system","subtype":"status","status":null,"permissionMode":"acceptEdits"}'; text "turn $n"; result success done ;;
        *OUT*) say '{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"terminal_reason":"api_error","result":"Invalid API key"}' ;;
        *DIE*) call; echo 'it hurts' >&2; exit 7 ;;
        *LEAVE*) text "turn $n"; result success done; exit 0 ;;
        *) text "turn $n"; result success done ;;
      esac ;;
  esac
done
