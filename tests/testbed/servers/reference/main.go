// Says what the reference library of the container world makes of image references.
//
// Standard input: one JSON string per line. Standard output: one JSON object per line, in the same order.
package main

import (
	"bufio"
	// The algorithms of digests: what is not linked in is "unsupported".
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/json"
	"log"
	"os"

	"github.com/distribution/reference"
)

type answer struct {
	Error  string `json:"error,omitempty"`
	Name   string `json:"name,omitempty"`
	Tag    string `json:"tag,omitempty"`
	Digest string `json:"digest,omitempty"`
	// Key is the name under which a runtime stores the image: of tag and digest the digest alone, `latest` where neither is given.
	Key string `json:"key,omitempty"`
}

func main() {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for in.More() {
		var written string
		if err := in.Decode(&written); err != nil {
			log.Fatal(err)
		}
		if err := encoder.Encode(parse(written)); err != nil {
			log.Fatal(err)
		}
		// A caller may wait for each answer.
		if err := out.Flush(); err != nil {
			log.Fatal(err)
		}
	}
}

func parse(written string) answer {
	named, err := reference.ParseNormalizedNamed(written)
	if err != nil {
		return answer{Error: err.Error()}
	}
	a := answer{Name: named.Name()}
	if tagged, ok := named.(reference.Tagged); ok {
		a.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		a.Digest = digested.Digest().String()
	}
	key, err := reference.ParseDockerRef(written)
	if err != nil {
		return answer{Error: err.Error()}
	}
	a.Key = key.String()
	return a
}
