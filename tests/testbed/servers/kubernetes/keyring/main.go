// Says which credentials the kubelet finds in pull secrets for an image, by the kubelet's own code.
//
// Standard input: one question per line. Standard output: one answer per line, in the same order.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"log"
	"maps"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/secrets"
)

type question struct {
	// Image is a registry and a repository in full, as the kubelet looks them up.
	Image   string      `json:"image"`
	Secrets []v1.Secret `json:"secrets"`
}

type answer struct {
	// Error is why the kubelet refuses the Secrets, all of them.
	Error string       `json:"error,omitempty"`
	Found []credential `json:"found,omitempty"`
}

type credential struct {
	Secret   string `json:"secret"`
	Username string `json:"username"`
	Password string `json:"password"`
}

func main() {
	// The kubelet says which keys it cannot read, thousands of them here.
	klog.SetLogger(klog.Logger{})
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for in.More() {
		var asked question
		if err := in.Decode(&asked); err != nil {
			log.Fatal(err)
		}
		if err := encoder.Encode(find(asked)); err != nil {
			log.Fatal(err)
		}
		// A caller may wait for each answer.
		if err := out.Flush(); err != nil {
			log.Fatal(err)
		}
	}
}

func find(asked question) answer {
	kubelets, err := secrets.MakeDockerKeyring(asked.Secrets, credentialprovider.UnionDockerKeyring{})
	if err != nil {
		return answer{Error: err.Error()}
	}
	found, inOrder := lookup(kubelets, asked.Image), lookup(ordered(asked.Secrets), asked.Image)
	if !slices.Equal(sorted(found), sorted(inOrder)) {
		log.Fatalf("the kubelet finds %v, and entry by entry it is %v", found, inOrder)
	}
	return answer{Found: inOrder}
}

func lookup(keyring credentialprovider.DockerKeyring, image string) []credential {
	found, _ := keyring.Lookup(image)
	credentials := make([]credential, 0, len(found))
	for _, one := range found {
		credentials = append(credentials, credential{one.Source.Secret.Name, one.Username, one.Password})
	}
	return credentials
}

// ordered is the kubelet's keyring, filled entry by entry. The kubelet itself walks over the entries of a Secret as Go walks over
// a map: of two that come to the same registry, chance decides which is tried first. Here it is the order of their keys.
func ordered(list []v1.Secret) credentialprovider.DockerKeyring {
	keyring := &credentialprovider.BasicDockerKeyring{}
	for _, secret := range list {
		source := &credentialprovider.CredentialSource{Secret: &credentialprovider.SecretCoordinates{Name: secret.Name}}
		config := entries(secret)
		for _, key := range slices.Sorted(maps.Keys(config)) {
			keyring.Add(source, credentialprovider.DockerConfig{key: config[key]})
		}
	}
	return keyring
}

// entries are those of a Secret that has been read without an error before.
func entries(secret v1.Secret) credentialprovider.DockerConfig {
	var config credentialprovider.DockerConfigJSON
	switch secret.Type {
	case v1.SecretTypeDockerConfigJson:
		_ = json.Unmarshal(secret.Data[v1.DockerConfigJsonKey], &config)
	case v1.SecretTypeDockercfg:
		_ = json.Unmarshal(secret.Data[v1.DockerConfigKey], &config.Auths)
	}
	return config.Auths
}

func sorted(credentials []credential) []credential {
	return slices.SortedFunc(slices.Values(credentials), func(a, b credential) int {
		return cmp.Or(cmp.Compare(a.Secret, b.Secret), cmp.Compare(a.Username, b.Username), cmp.Compare(a.Password, b.Password))
	})
}
