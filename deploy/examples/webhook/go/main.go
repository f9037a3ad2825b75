// Receives siwad's webhooks: verifies each, and acts on it once. Environment: SECRET, PORT.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// For brevity in memory: use tables of your own, and write to them in the transaction that acts.
var mutex, handled, latest = sync.Mutex{}, map[string]bool{}, map[string]float64{}

func isGenuine(head http.Header, body []byte) bool {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))
	code := hmac.New(sha256.New, key)
	fmt.Fprintf(code, "%s.%s.%s", head.Get("webhook-id"), head.Get("webhook-timestamp"), body)
	expected, isSigned := "v1,"+base64.StdEncoding.EncodeToString(code.Sum(nil)), false
	for _, signature := range strings.Fields(head.Get("webhook-signature")) {
		isSigned = isSigned || hmac.Equal([]byte(signature), []byte(expected))
	}
	sent, err := time.ParseDuration(head.Get("webhook-timestamp") + "s")
	return isSigned && err == nil && time.Since(time.Unix(0, 0).Add(sent)).Abs() <= 5*time.Minute
}

func act(kind string, data map[string]any) {
	ended := data["session_id"]
	if sessions, ok := data["sessions"].(map[string]any); ok {
		ended = fmt.Sprint(sessions["created_until"]) // <nil>: all
	}
	if ended != nil {
		fmt.Printf("%s: end %s\n", data["sub"], ended) // In any order, because what ended never comes back.
	}
	app := map[any]any{"app": data["app_id"]}[data["scope"]]
	facet := fmt.Sprint(data["team_id"], " ", data["sub"], " ", strings.Split(kind, ".")[1], " ", app)
	if position, _ := data["position"].(float64); position > latest[facet] {
		fmt.Printf("%s: %s\n", data["sub"], kind) // The person's state, unless a later change has set it.
		latest[facet] = position
	}
}

func main() {
	panic(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			Type string
			Data map[string]any
		}
		body, _ := io.ReadAll(r.Body)
		if !isGenuine(r.Header, body) || json.Unmarshal(body, &event) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		if id := r.Header.Get("webhook-id"); !handled[id] {
			act(event.Type, event.Data)
			handled[id] = true
		}
		w.WriteHeader(http.StatusNoContent)
	})))
}
