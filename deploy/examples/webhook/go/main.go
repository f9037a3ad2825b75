// Receives siwad's webhooks: verifies each, and acts on it once. Environment: SECRET, PORT.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// For brevity in memory: use tables of your own, and write to them in the transaction that acts.
var mutex, handled, latest = sync.Mutex{}, map[string]bool{}, map[[4]any]float64{}

func isGenuine(head http.Header, body []byte) (isSigned bool) {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))
	code := hmac.New(sha256.New, key)
	io.WriteString(code, head.Get("webhook-id")+"."+head.Get("webhook-timestamp")+"."+string(body))
	expected := "v1," + base64.StdEncoding.EncodeToString(code.Sum(nil))
	for _, signature := range strings.Fields(head.Get("webhook-signature")) {
		isSigned = isSigned || hmac.Equal([]byte(signature), []byte(expected))
	}
	sent, _ := time.ParseDuration(head.Get("webhook-timestamp") + "s") // 0, which is too old, if it is no number.
	return isSigned && time.Since(time.Unix(0, 0).Add(sent)).Abs() <= 5*time.Minute
}

func act(kind string, data map[string]any) {
	if sessions, ok := data["sessions"].(map[string]any); ok { // In any order, because what ended never comes back.
		log.Printf("%s: end %v", data["sub"], sessions["created_until"]) // nil: all
	} else if session, ok := data["session_id"]; ok {
		log.Printf("%s: end %s", data["sub"], session)
	}
	app := map[any]any{"app": data["app_id"]}[data["scope"]] // nil for the scope team.
	facet := [4]any{data["team_id"], data["sub"], strings.Split(kind, ".")[1], app}
	if position, _ := data["position"].(float64); position > latest[facet] {
		latest[facet] = position
		log.Printf("%s: %s", data["sub"], kind) // The person's state, unless a later change has set it.
	}
}

func main() {
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event map[string]any
		body, _ := io.ReadAll(r.Body)
		if !isGenuine(r.Header, body) || json.Unmarshal(body, &event) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		if id := r.Header.Get("webhook-id"); !handled[id] {
			act(event["type"].(string), event["data"].(map[string]any))
			handled[id] = true
		}
		w.WriteHeader(http.StatusNoContent)
	})))
}
