# A claude whose process stays open. A word in the prompt chooses what it does. It copies its input to $HOME/stdin.
echo $$ >> $HOME/pids; echo "$@" >> $HOME/args
sid=0a0a0a0a-59e7-4350-8eaf-4835821efe65
send() { printf '%s\n' "$1"; }
field() { printf '%s' "$line" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }
respond() { send "{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"$(field request_id)\",\"response\":$1}}"; }
text() { send "{\"type\":\"assistant\",\"message\":{\"id\":\"m$n\",\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]}}"; }
result() { send "{\"type\":\"result\",\"subtype\":\"$1\",\"session_id\":\"$sid\",\"terminal_reason\":\"$2\",\"usage\":{\"input_tokens\":10,\"output_tokens\":5},\"total_cost_usd\":0.01,\"fast_mode_state\":\"$fast\",\"fast_mode_disabled_reason\":\"free\"}"; }
start_call() { send "{\"type\":\"assistant\",\"message\":{\"id\":\"c$n\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t$n\",\"name\":\"Bash\",\"input\":{\"command\":\"wait\"}}]}}"; }
read_line() { IFS= read -r line || exit 0; printf '%s\n' "$line" >> $HOME/stdin; }
case "$*" in *--resume*) [ -e $HOME/lost ] && {
  send '{"type":"result","subtype":"error_during_execution","is_error":true,"session_id":"stale","errors":["No conversation found with session ID"]}'; exit 1; } ;; esac
n=0; fast=off
while read_line; do
  n=$((n+1))
  case "$line" in
    *'"subtype":"initialize"'*)
      respond '{"commands":[{"name":"plan","description":"Makes a plan","argumentHint":"[what]"}],"agents":[{"name":"Plan"},{"name":"reviewer","description":"Reviews code"}],"models":[{"value":"default"},{"value":"big","displayName":"Big","supportsFastMode":true,"supportsEffort":true,"supportedEffortLevels":["high","xhigh"]}]}' ;;
    *'"subtype":"get_context_usage"'*) n=$((n-1)); respond '{"rawMaxTokens":1000}' ;;
    *'"subtype":"get_settings"'*) n=$((n-1)); respond '{"applied":{"ultracodeAvailable":true,"ultracodeRequested":false}}' ;;
    *'"fastMode":true'*) [ -e $HOME/no-fast ] || fast=on; respond '{}' ;;
    *'"subtype":"apply_flag_settings"'*) respond '{}' ;;
    *'"mode":"bypassPermissions"'*)
      send "{\"type\":\"control_response\",\"response\":{\"subtype\":\"error\",\"request_id\":\"$(field request_id)\",\"error\":\"not launched so\"}}" ;;
    *'"subtype":"set_'*) respond '{}' ;;
    *'"type":"user"'*)
      [ -e $HOME/dying ] && { rm $HOME/dying; exit 9; }
      send "{\"type\":\"command_lifecycle\",\"command_uuid\":\"$(field uuid)\",\"state\":\"queued\"}"
      case "$line" in *BACKGROUND*) text old; result success done ;; esac
      send "{\"type\":\"command_lifecycle\",\"command_uuid\":\"$(field uuid)\",\"state\":\"started\"}"
      send "{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"$sid\",\"model\":\"the-model\",\"slash_commands\":[\"plan\",\"other\"]}"
      case "$line" in
        *GARBAGE*) send 'no json'; send '{"type":"never seen"}'; send '[7]'; send ''; text "turn $n"; result success done ;;
        *ASK*)
          start_call
          send "{\"type\":\"control_request\",\"request_id\":\"r$n\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"Bash\",\"input\":{\"command\":\"wait\"},\"tool_use_id\":\"t$n\",\"permission_suggestions\":[{\"type\":\"setMode\",\"mode\":\"acceptEdits\",\"destination\":\"session\"}]}}"
          read_line
          case "$line" in
            *'"subtype":"interrupt"'*) respond '{"still_queued":[]}'; result error_during_execution aborted_tools ;;
            *) text "decided"; result success done ;;
          esac ;;
        *PLAN*)
          send "{\"type\":\"assistant\",\"message\":{\"id\":\"c$n\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t$n\",\"name\":\"ExitPlanMode\",\"input\":{\"plan\":\"# First\"}}]}}"
          send "{\"type\":\"control_request\",\"request_id\":\"r$n\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"ExitPlanMode\",\"input\":{},\"tool_use_id\":\"t$n\"}}"
          read_line
          case "$line" in
            *'"interrupt":true'*) send '{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["[diagnostic] stopped"]}' ;;
            *) text "decided"; result success done ;;
          esac ;;
        *FORM*)
          send "{\"type\":\"control_request\",\"request_id\":\"r$n\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"AskUserQuestion\",\"input\":{\"questions\":[{\"question\":\"Which?\",\"header\":\"Store\",\"options\":[{\"label\":\"Redis\",\"description\":\"fast\"},{\"label\":\"None\"}]}]},\"tool_use_id\":\"t$n\"}}"
          read_line
          case "$line" in
            *'"subtype":"interrupt"'*) respond '{"still_queued":[]}'; result error_during_execution aborted_tools ;;
            *) text "decided"; result success done ;;
          esac ;;
        *LIMIT*) send '{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"terminal_reason":"api_error","result":"Too fast"}' ;;
        *LONG*) send '{"type":"result","subtype":"success","is_error":true,"terminal_reason":"api_error","result":"Prompt is too long"}' ;;
        *WAIT*)
          start_call; read_line
          while ! printf '%s' "$line" | grep -q interrupt; do respond '{}'; text "setting taken"; read_line; done
          respond '{"still_queued":[]}'; result error_during_execution aborted_tools ;;
        *DEAF*)
          trap '' INT TERM
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" &
          while [ ! -s $HOME/tool ]; do :; done
          start_call; while :; do sleep 60; done ;;
        *SPAWN*)
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" > /dev/null 2>&1 &
          while [ ! -s $HOME/tool ]; do :; done
          text "turn $n"; result success done ;;
        *AGREED*) send '{"type":"system","subtype":"status","status":null,"permissionMode":"acceptEdits"}'; text "turn $n"; result success done ;;
        *OUT*) send '{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"terminal_reason":"api_error","result":"Invalid API key"}' ;;
        *DIE*) start_call; echo 'it hurts' >&2; exit 7 ;;
        *LEAVE*) text "turn $n"; result success done; exit 0 ;;
        *) text "turn $n"; result success done ;;
      esac ;;
  esac
done
