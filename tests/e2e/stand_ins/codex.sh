# A codex app-server. A word in the prompt chooses what it does. It copies its input to $HOME/stdin.
echo $$ >> $HOME/pids; echo "$@" >> $HOME/args
t=01a1dc88-0000-7000-8000-000000000001
send() { printf '%s\n' "$1"; }
id() { printf '%s' "$line" | sed 's/^{"id":\([0-9]*\).*/\1/'; }
notify() { send "{\"method\":\"$1\",\"params\":{\"threadId\":\"$t\",$2}}"; }
text() { notify item/agentMessage/delta "\"itemId\":\"m$n\",\"delta\":\"$1\""; notify item/completed "\"item\":{\"type\":\"agentMessage\",\"id\":\"m$n\",\"text\":\"$1\"}"; }
send_usage() { notify thread/tokenUsage/updated "\"turnId\":\"u$n\",\"tokenUsage\":{\"total\":{\"inputTokens\":${n}0,\"outputTokens\":$n,\"totalTokens\":${n}1},\"last\":{\"inputTokens\":10,\"outputTokens\":1,\"totalTokens\":11},\"modelContextWindow\":1000}"; }
end_turn() { send_usage; notify turn/completed "\"turn\":{\"id\":\"u$n\",\"status\":\"$1\",\"error\":$2}"; }
start_call() { notify item/started "\"item\":{\"type\":\"commandExecution\",\"id\":\"c$n\",\"command\":\"/bin/bash -lc 'wait'\",\"cwd\":\"/\",\"status\":\"inProgress\",\"commandActions\":[{\"type\":\"unknown\",\"command\":\"wait\"}]}"; }
end_call() { notify item/completed "\"item\":{\"type\":\"commandExecution\",\"id\":\"c$n\",\"command\":\"/bin/bash -lc 'wait'\",\"status\":\"$1\",\"aggregatedOutput\":null,\"exitCode\":$2}"; }
read_line() { IFS= read -r line || exit 0; printf '%s\n' "$line" >> $HOME/stdin; }
n=0
while read_line; do
  case "$line" in
    *'"method":"initialize"'*) send "{\"id\":$(id),\"result\":{\"userAgent\":\"x\"}}" ;;
    *'"method":"account/read"'*)
      if [ -e $HOME/logged-out ]; then needs=true; else needs=false; fi
      send "{\"id\":$(id),\"result\":{\"account\":null,\"requiresOpenaiAuth\":$needs}}" ;;
    *'"method":"model/list"'*)
      send "{\"id\":$(id),\"result\":{\"data\":[{\"id\":\"big\",\"displayName\":\"Big\",\"hidden\":false,\"supportedReasoningEfforts\":[{\"reasoningEffort\":\"huge\"}]},{\"id\":\"secret\",\"hidden\":true}]}}" ;;
    *'"method":"account/rateLimits/read"'*) send "{\"id\":$(id),\"error\":{\"code\":-32600,\"message\":\"no account\"}}" ;;
    *'"method":"thread/name/set"'*) send "{\"id\":$(id),\"result\":{}}" ;;
    *'"method":"skills/list"'*)
      send "{\"id\":$(id),\"result\":{\"data\":[{\"cwd\":\"/\",\"skills\":[{\"name\":\"draw\",\"description\":\"Draws\",\"enabled\":true}]}]}}" ;;
    *'"method":"thread/resume"'*)
      if [ -e $HOME/lost ]; then send "{\"id\":$(id),\"error\":{\"code\":-32600,\"message\":\"no rollout found for thread id x\"}}"
      else send "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"$t\"},\"model\":\"usual\"}}"; fi ;;
    *'"method":"thread/list"'*)
      send "{\"id\":$(id),\"result\":{\"data\":[{\"id\":\"$t\",\"cwd\":\"/\",\"preview\":\"one\"},{\"id\":\"01a1dc88-0000-7000-8000-000000000009\",\"cwd\":\"/work\",\"preview\":\"long ago\",\"updatedAt\":1}],\"nextCursor\":null}}" ;;
    *'"method":"thread/read"'*000000000009*)
      send "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"x\",\"cwd\":\"/work\",\"turns\":[{\"items\":[{\"type\":\"userMessage\",\"id\":\"a\",\"content\":[{\"type\":\"text\",\"text\":\"long ago\"}]},{\"type\":\"agentMessage\",\"id\":\"b\",\"text\":\"I was told.\"}]}]}}}" ;;
    *'"method":"thread/read"'*) send "{\"id\":$(id),\"error\":{\"code\":-32600,\"message\":\"thread not loaded\"}}" ;;
    *'"method":"thread/fork"'*)
      t=01a1dc88-0000-7000-8000-000000000002; send "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"$t\"},\"model\":\"usual\"}}" ;;
    *'"method":"thread/start"'*) send "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"$t\"},\"model\":\"usual\"}}" ;;
    *'"method":"turn/start"'*)
      n=$((n+1)); prompt="$line"
      send "{\"id\":$(id),\"result\":{\"turn\":{\"id\":\"u$n\"}}}"
      notify turn/started "\"turn\":{\"id\":\"u$n\"}"
      case "$prompt" in
        *GARBAGE*) send 'no json'; send '{"method":"never/seen","params":{}}'; send '[7]'; send '{}'; text "turn $n"; end_turn completed null ;;
        *PROPOSE*)
          notify item/completed "\"item\":{\"type\":\"plan\",\"id\":\"p$n\",\"text\":\"# First\"}"; end_turn completed null ;;
        *OTHERS*)
          send '{"method":"item/agentMessage/delta","params":{"threadId":"other","itemId":"o","delta":"not ours"}}'
          send '{"method":"turn/completed","params":{"threadId":"other","turn":{"id":"o","status":"completed"}}}'
          text "turn $n"; end_turn completed null ;;
        *ASK*)
          start_call
          send "{\"method\":\"item/commandExecution/requestApproval\",\"id\":$n,\"params\":{\"threadId\":\"$t\",\"itemId\":\"c$n\",\"command\":\"/bin/bash -lc 'wait'\",\"availableDecisions\":[\"accept\",{\"acceptWithExecpolicyAmendment\":{\"execpolicy_amendment\":[\"wait\"]}},\"cancel\"]}}"
          read_line
          case "$line" in
            *turn/interrupt*) send "{\"method\":\"serverRequest/resolved\",\"params\":{\"threadId\":\"$t\",\"requestId\":$n}}"; send "{\"id\":$(id),\"result\":{}}"; end_turn interrupted null ;;
            *'"cancel"'*) end_call declined null; end_turn interrupted null ;;
            *'"decline"'*) end_call declined null; text decided; end_turn completed null ;;
            *) end_call completed 0; text decided; end_turn completed null ;;
          esac ;;
        *TOOL*)
          call="\"type\":\"mcpToolCall\",\"id\":\"c$n\",\"server\":\"probe\",\"tool\":\"delete\",\"arguments\":{\"all\":true}"
          notify item/started "\"item\":{$call,\"status\":\"inProgress\"}"
          send "{\"method\":\"mcpServer/elicitation/request\",\"id\":$n,\"params\":{\"threadId\":\"$t\",\"turnId\":\"u$n\",\"serverName\":\"probe\",\"mode\":\"form\",\"_meta\":{\"codex_approval_kind\":\"mcp_tool_call\",\"persist\":[\"session\",\"always\"],\"tool_params\":{\"all\":true}},\"message\":\"Allow the probe MCP server to run tool \\\"delete\\\"?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{}}}}"
          read_line
          case "$line" in
            *'"accept"'*) notify item/completed "\"item\":{$call,\"status\":\"completed\"}" ;;
            *) notify item/completed "\"item\":{$call,\"status\":\"failed\",\"error\":{\"message\":\"user rejected MCP tool call\"}}" ;;
          esac
          text decided; end_turn completed null ;;
        *INPUT*)
          send "{\"method\":\"item/tool/requestUserInput\",\"id\":$n,\"params\":{\"threadId\":\"$t\",\"turnId\":\"u$n\",\"itemId\":\"i$n\",\"questions\":[{\"id\":\"db\",\"header\":\"Store\",\"question\":\"Which?\",\"isOther\":false,\"isSecret\":false,\"options\":[{\"label\":\"Redis\",\"description\":\"fast\"}]}],\"autoResolutionMs\":null}}"
          read_line; text decided; end_turn completed null ;;
        *FULL*) end_turn failed '{"message":"ran out of room","codexErrorInfo":"contextWindowExceeded"}' ;;
        *WAIT*) start_call; read_line; send "{\"id\":$(id),\"result\":{}}"; end_turn interrupted null ;;
        *DEAF*)
          trap '' INT TERM
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" &
          while [ ! -s $HOME/tool ]; do :; done
          start_call; while :; do sleep 60; done ;;
        *SPAWN*)
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" > /dev/null 2>&1 &
          while [ ! -s $HOME/tool ]; do :; done
          text "turn $n"; end_turn completed null ;;
        *DIE*) start_call; printf '\033[31mit hurts\033[0m\n' >&2; exit 7 ;;
        *LEAVE*) text "turn $n"; end_turn completed null; exit 0 ;;
        *OUT*) end_turn failed '{"message":"no key","codexErrorInfo":{"responseStreamConnectionFailed":{"httpStatusCode":401}}}' ;;
        *) text "turn $n"; end_turn completed null ;;
      esac ;;
  esac
done
