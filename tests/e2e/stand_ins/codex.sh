# Codex app-server: what it does for a prompt depends on a word in it. What it is told is kept in $HOME/stdin, line by line.
echo $$ >> $HOME/pids; echo "$@" >> $HOME/args
t=01a1dc88-0000-7000-8000-000000000001
say() { printf '%s\n' "$1"; }
id() { printf '%s' "$line" | sed 's/^{"id":\([0-9]*\).*/\1/'; }
tells() { say "{\"method\":\"$1\",\"params\":{\"threadId\":\"$t\",$2}}"; }
text() { tells item/agentMessage/delta "\"itemId\":\"m$n\",\"delta\":\"$1\""; tells item/completed "\"item\":{\"type\":\"agentMessage\",\"id\":\"m$n\",\"text\":\"$1\"}"; }
used() { tells thread/tokenUsage/updated "\"turnId\":\"u$n\",\"tokenUsage\":{\"total\":{\"inputTokens\":${n}0,\"outputTokens\":$n,\"totalTokens\":${n}1},\"last\":{\"inputTokens\":10,\"outputTokens\":1,\"totalTokens\":11},\"modelContextWindow\":1000}"; }
ends() { used; tells turn/completed "\"turn\":{\"id\":\"u$n\",\"status\":\"$1\",\"error\":$2}"; }
call() { tells item/started "\"item\":{\"type\":\"commandExecution\",\"id\":\"c$n\",\"command\":\"/bin/bash -lc 'wait'\",\"cwd\":\"/\",\"status\":\"inProgress\",\"commandActions\":[{\"type\":\"unknown\",\"command\":\"wait\"}]}"; }
called() { tells item/completed "\"item\":{\"type\":\"commandExecution\",\"id\":\"c$n\",\"command\":\"/bin/bash -lc 'wait'\",\"status\":\"$1\",\"aggregatedOutput\":null,\"exitCode\":$2}"; }
next() { IFS= read -r line || exit 0; printf '%s\n' "$line" >> $HOME/stdin; }
n=0
while next; do
  case "$line" in
    *'"method":"initialize"'*) say "{\"id\":$(id),\"result\":{\"userAgent\":\"x\"}}" ;;
    *'"method":"model/list"'*)
      say "{\"id\":$(id),\"result\":{\"data\":[{\"id\":\"big\",\"displayName\":\"Big\",\"hidden\":false,\"supportedReasoningEfforts\":[{\"reasoningEffort\":\"huge\"}]},{\"id\":\"secret\",\"hidden\":true}]}}" ;;
    *'"method":"thread/resume"'*)
      if [ -e $HOME/lost ]; then say "{\"id\":$(id),\"error\":{\"code\":-32600,\"message\":\"no rollout found for thread id x\"}}"
      else say "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"$t\"},\"model\":\"usual\"}}"; fi ;;
    *'"method":"thread/fork"'*)
      t=01a1dc88-0000-7000-8000-000000000002; say "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"$t\"},\"model\":\"usual\"}}" ;;
    *'"method":"thread/start"'*) say "{\"id\":$(id),\"result\":{\"thread\":{\"id\":\"$t\"},\"model\":\"usual\"}}" ;;
    *'"method":"turn/start"'*)
      n=$((n+1)); prompt="$line"
      say "{\"id\":$(id),\"result\":{\"turn\":{\"id\":\"u$n\"}}}"
      tells turn/started "\"turn\":{\"id\":\"u$n\"}"
      case "$prompt" in
        *GARBAGE*) say 'no json'; say '{"method":"never/seen","params":{}}'; say '[7]'; say '{}'; text "turn $n"; ends completed null ;;
        *OTHERS*)
          say '{"method":"item/agentMessage/delta","params":{"threadId":"other","itemId":"o","delta":"not ours"}}'
          say '{"method":"turn/completed","params":{"threadId":"other","turn":{"id":"o","status":"completed"}}}'
          text "turn $n"; ends completed null ;;
        *ASK*)
          call
          say "{\"method\":\"item/commandExecution/requestApproval\",\"id\":$n,\"params\":{\"threadId\":\"$t\",\"itemId\":\"c$n\",\"command\":\"/bin/bash -lc 'wait'\",\"availableDecisions\":[\"accept\",{\"acceptWithExecpolicyAmendment\":{\"execpolicy_amendment\":[\"wait\"]}},\"cancel\"]}}"
          next
          case "$line" in
            *turn/interrupt*) say "{\"method\":\"serverRequest/resolved\",\"params\":{\"threadId\":\"$t\",\"requestId\":$n}}"; say "{\"id\":$(id),\"result\":{}}"; ends interrupted null ;;
            *'"cancel"'*) called declined null; ends interrupted null ;;
            *'"decline"'*) called declined null; text decided; ends completed null ;;
            *) called completed 0; text decided; ends completed null ;;
          esac ;;
        *WAIT*) call; next; say "{\"id\":$(id),\"result\":{}}"; ends interrupted null ;;
        *DEAF*)
          trap '' INT TERM
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" &
          while [ ! -s $HOME/tool ]; do :; done
          call; while :; do sleep 60; done ;;
        *SPAWN*)
          setsid sh -c "trap '' INT TERM; echo \$\$ > $HOME/tool; while :; do sleep 60; done" > /dev/null 2>&1 &
          while [ ! -s $HOME/tool ]; do :; done
          text "turn $n"; ends completed null ;;
        *DIE*) call; printf '\033[31mit hurts\033[0m\n' >&2; exit 7 ;;
        *LEAVE*) text "turn $n"; ends completed null; exit 0 ;;
        *OUT*) ends failed '{"message":"no key","codexErrorInfo":{"responseStreamConnectionFailed":{"httpStatusCode":401}}}' ;;
        *) text "turn $n"; ends completed null ;;
      esac ;;
  esac
done
