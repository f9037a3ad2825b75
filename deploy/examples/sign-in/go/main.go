// Signs a person in with what an app got from Apple. Environment: APPLICATION_SOCKET, CLIENT_ID; APPLICATION_TOKEN if tokens are configured.
//
// sign-in nonce              makes a nonce for an attempt; the app passes its sha256 to Apple
// sign-in NONCE <app.json    app.json: identityToken, authorizationCode, and user if Apple gave the name
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

type object = map[string]any

var siwad = http.Client{Timeout: 12 * time.Second, Transport: &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("APPLICATION_SOCKET"))
	},
}}

func send(path string, text []byte) (response *http.Response, answer object, err error) {
	request, _ := http.NewRequest("POST", "http://siwad"+path, bytes.NewReader(text))
	request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + os.Getenv("APPLICATION_TOKEN")}}
	if response, err = siwad.Do(request); err == nil {
		defer response.Body.Close()
		err = json.NewDecoder(response.Body).Decode(&answer)
	}
	return
}

// post sends the same again if the answer was lost: siwad repeats it. No attempt begins after 15 seconds.
func post(path string, body object) object {
	body["client_id"] = os.Getenv("CLIENT_ID")
	text, _ := json.Marshal(body)
	end := time.Now().Add(15 * time.Second)
	for {
		pause := time.Second
		response, answer, err := send(path, text)
		if err == nil && response.StatusCode == http.StatusOK {
			return answer
		} else if err == nil {
			err = fmt.Errorf("%s: %s", answer["action"], answer["detail"])
			if answer["action"] != "retry" {
				log.Fatal(err)
			} else if after := response.Header.Get("Retry-After"); after != "" {
				pause, _ = time.ParseDuration(after + "s")
			}
		}
		if time.Now().Add(pause).After(end) {
			log.Fatal(err)
		}
		time.Sleep(pause)
	}
}

func main() {
	log.SetFlags(0)
	output := json.NewEncoder(os.Stdout)
	if os.Args[1] == "nonce" {
		output.Encode(post("/v1/nonces", object{}))
		return
	}
	var app struct{ IdentityToken, AuthorizationCode, User any }
	if err := json.NewDecoder(os.Stdin).Decode(&app); err != nil {
		log.Fatal(err)
	}
	token := make([]byte, 32) // The app keeps it; siwad only gets a digest.
	rand.Read(token)
	bearer := hex.EncodeToString(token)
	answer := post("/v1/sign-in", object{
		"identity_token": app.IdentityToken, "authorization_code": app.AuthorizationCode, "user": app.User, "nonce": os.Args[1],
		"session": object{"id": fmt.Sprintf("%x", sha256.Sum256([]byte(bearer))), "expires_in": 30 * 86400},
	})
	output.Encode(object{"token": bearer, "account": answer["account"].(object)["id"], "name": answer["name"]})
}
