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
var key, keyError = base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))

func isGenuine(head http.Header, body []byte) (isSigned bool) {
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
	// The last is nil for the scope team.
	facet := [4]any{data["team_id"], data["sub"], strings.Split(kind, ".")[1], map[any]any{"app": data["app_id"]}[data["scope"]]}
	if position, _ := data["position"].(float64); position > latest[facet] {
		latest[facet] = position
		log.Printf("%s: %s", data["sub"], kind) // The person's state, unless a later change has set it.
	}
}

func main() {
	if keyError != nil || len(key) < 24 || !strings.HasPrefix(os.Getenv("SECRET"), "whsec_") {
		log.Fatal("SECRET must be whsec_…")
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, status, event := r.Header.Get("webhook-id"), http.StatusNoContent, map[string]any{}
		body, _ := io.ReadAll(r.Body)
		mutex.Lock()
		defer mutex.Unlock()
		if !isGenuine(r.Header, body) || json.Unmarshal(body, &event) != nil {
			status = http.StatusBadRequest
		} else if !handled[id] {
			act(event["type"].(string), event["data"].(map[string]any))
			handled[id] = true
		}
		w.WriteHeader(status)
	})))
}
