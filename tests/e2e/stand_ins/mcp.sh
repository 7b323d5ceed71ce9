# An MCP server on stdin and stdout. It writes its pid and what it reads into the folder $FOLDER.
echo $$ > "$FOLDER/pid"
echo "the token is $TOKEN, the key of the model '$OPENAI_API_KEY'" >&2
while read -r line; do
    printf '%s\n' "$line" >> "$FOLDER/read"
    id=$(printf '%s' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\),.*/\1/p')
    result=
    case $line in
    *'"method":"initialize"'*)
        result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}'
        ;;
    *'"method":"tools/list"'*)
        schema='{"type":"object","properties":{"text":{"type":"string"}}}'
        result='{"tools":[{"name":"echo","title":"Says it again","description":"Echoes.","inputSchema":'$schema'},'
        result=$result'{"name":"look","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},'
        result=$result'{"name":"hang","inputSchema":{"type":"object"}},{"name":"crash","inputSchema":{"type":"object"}}]}'
        ;;
    *'"name":"echo"'*)
        text=$(printf '%s' "$line" | sed -n 's/.*"text":"\([^"]*\)".*/\1/p')
        image='{"type":"image","data":"AAAA","mimeType":"image/png"}'
        result='{"content":[{"type":"text","text":"echo: '$text'"},'$image']}'
        ;;
    *'"name":"look"'*) result='{"content":[{"type":"text","text":"nothing there"}],"isError":true}' ;;
    *'"name":"crash"'*)
        echo 'out of memory' >&2
        exit 1
        ;;
    esac
    if [ -n "$result" ]; then
        printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
    fi
done
