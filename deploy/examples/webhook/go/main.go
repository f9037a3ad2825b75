// Receives siwad's webhooks: verifies each, and acts on it once. Environment: SECRET, PORT.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

var key, _ = base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))

// For brevity in memory: use tables of your own, and write to them in the transaction that acts.
var mutex, handled, applied = sync.Mutex{}, map[string]bool{}, map[string]float64{}

func isGenuine(id, timestamp, signatures string, body []byte) bool {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	expected, isSigned := "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), false
	for _, signature := range strings.Split(signatures, " ") {
		isSigned = isSigned || hmac.Equal([]byte(signature), []byte(expected))
	}
	seconds, _ := strconv.ParseInt(timestamp, 10, 64)
	return isSigned && time.Since(time.Unix(seconds, 0)).Abs() <= 5*time.Minute
}

func receive(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("webhook-id")
	body, _ := io.ReadAll(r.Body)
	if !isGenuine(id, r.Header.Get("webhook-timestamp"), r.Header.Get("webhook-signature"), body) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var event struct {
		Type string
		Data map[string]any
	}
	_ = json.Unmarshal(body, &event)
	data := event.Data
	subject := fmt.Sprint(data["team_id"], data["sub"], strings.Split(event.Type, ".")[1], data["session_id"])
	if data["scope"] == "app" {
		subject += fmt.Sprint(data["app_id"])
	}
	mutex.Lock()
	defer mutex.Unlock()
	if position, _ := data["position"].(float64); !handled[id] && position > applied[subject] {
		fmt.Printf("%s: %s\n", data["sub"], event.Type) // Act here.
		applied[subject] = position
	}
	handled[id] = true
	w.WriteHeader(http.StatusNoContent)
}

func main() {
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), http.HandlerFunc(receive)))
}
